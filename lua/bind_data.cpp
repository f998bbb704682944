// Corpora, samplers, safetensors and JSON.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "core/base/base64.h"
#include "core/base/units.h"
#include "core/data/chat.h"
#include "core/data/draw.h"
#include "core/data/images.h"
#include "core/data/shuffle.h"
#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "lua/objects.h"
#include "lua/snapshot_content.h"

namespace het::lua {

void push_json(lua_State* L, const Json& json) {
  luaL_checkstack(L, 6, "nested JSON");
  if (const Json::array_t* array = as_array(json)) {
    lua_createtable(L, static_cast<int>(array->size()), 0);
    for (size_t i = 0; i < array->size(); ++i) {
      push_json(L, (*array)[i]);
      lua_rawseti(L, -2, static_cast<int>(i) + 1);
    }
  } else if (const Json::object_t* object = as_object(json)) {
    lua_createtable(L, 0, static_cast<int>(object->size()));
    for (const auto& [name, member] : *object) {
      lua_pushlstring(L, name.data(), name.size());
      push_json(L, member);
      lua_rawset(L, -3);
    }
  } else if (const std::string* text = as_string(json)) {
    Convert<std::string>::push(L, *text);
  } else if (const int64_t* integer = as_integer(json)) {
    Convert<int64_t>::push(L, *integer);
  } else if (json.is_number()) {
    Convert<double>::push(L, json.get<double>());
  } else if (const bool* flag = as_bool(json)) {
    Convert<bool>::push(L, *flag);
  } else {
    lua_pushlightuserdata(L, nullptr);
  }
}

namespace {

// --- JSON; null is the lightuserdata native.null
// What a value may take as JSON: tables that stand in each other many times over would fill any memory.
constexpr int64_t kMostJsonBytes = int64_t{1} << 28;
void count_json(int64_t& left, int64_t bytes) {
  left -= bytes;
  if (left < 0) fail_usage("a table of more than {} cannot be written as JSON", show_bytes(kMostJsonBytes));
}

Json bounded_json_at(lua_State* L, int index, int64_t& left, int depth) {
  count_json(left, sizeof(Json));
  if (depth > kJsonDepth)
    fail_usage("a table nested deeper than {} (or one that holds itself) cannot be written as JSON",
               kJsonDepth);
  luaL_checkstack(L, 6, "nested JSON");
  switch (lua_type(L, index)) {
    case LUA_TNIL: return {};
    case LUA_TLIGHTUSERDATA: return {};
    case LUA_TBOOLEAN: return lua_toboolean(L, index) != 0;
    case LUA_TSTRING:
      count_json(left, static_cast<int64_t>(lua_objlen(L, index)));
      return Convert<std::string>::get(L, index);
    case LUA_TNUMBER: {
      const double number = lua_tonumber(L, index);
      if (std::abs(number) < 0x1p53 && number == std::floor(number)) return static_cast<int64_t>(number);
      return number;
    }
    case LUA_TTABLE: break;
    default: fail_usage("a {} cannot be written as JSON", lua_typename(L, lua_type(L, index)));
  }
  const auto count = static_cast<int>(lua_objlen(L, index));
  if (count > 0) {
    Json::array_t array;
    for (int i = 1; i <= count; ++i) {
      lua_rawgeti(L, index, i);
      array.push_back(bounded_json_at(L, lua_gettop(L), left, depth + 1));
      lua_pop(L, 1);
    }
    return array;
  }
  std::map<std::string, Json> members;  // in the order of their names
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    if (lua_type(L, -2) != LUA_TSTRING)
      fail_usage("a table with keys other than 1.. and strings cannot be written as JSON");
    std::string name = Convert<std::string>::get(L, lua_gettop(L) - 1);
    count_json(left, static_cast<int64_t>(sizeof(name) + name.size()));
    members.emplace(std::move(name), bounded_json_at(L, lua_gettop(L), left, depth + 1));
    lua_pop(L, 1);
  }
  return members;
}
}  // namespace

Json json_at(lua_State* L, int index) {
  int64_t left = kMostJsonBytes;
  return bounded_json_at(L, index, left, 0);
}

namespace {

int json_read(lua_State* L) {
  push_json(L, read_json(Convert<Path>::get(L, 1)));
  return 1;
}
std::string json_file_at(lua_State* L, int index) { return dump(json_at(L, index), true) + "\n"; }
int json_write(lua_State* L) {  // path, value
  write_file(Convert<Path>::get(L, 1), json_file_at(L, 2));
  return 0;
}
int json_encode(lua_State* L) {  // value[, whether each member stands on its line]
  return Convert<std::string>::push(
      L, dump(json_at(L, 1), Convert<std::optional<bool>>::get(L, 2).value_or(false)));
}
int json_decode(lua_State* L) {
  push_json(L, parse_json(Convert<std::string>::get(L, 1), "the text"));
  return 1;
}

// --- safetensors

int push_metadata(lua_State* L, const std::map<std::string, std::string>& metadata) {
  lua_newtable(L);
  for (const auto& [name, text] : metadata) {
    Convert<std::string>::push(L, name);
    Convert<std::string>::push(L, text);
    lua_rawset(L, -3);
  }
  return 2;
}
int safetensors_open(lua_State* L) {  // path -> {name = stored tensor}, {metadata}
  const StoredSafetensors file = open_safetensors(Convert<Path>::get(L, 1));
  lua_newtable(L);
  for (const auto& [name, tensor] : file.tensors) {
    Convert<std::string>::push(L, name);
    Convert<StoredTensor>::push(L, tensor);
    lua_rawset(L, -3);
  }
  return push_metadata(L, file.metadata);
}
int stored_joined(lua_State* L) {  // {stored tensors}: one below the other
  std::vector<StoredTensor> parts;
  const int count = list_size(L, 1);
  if (count == 0) fail_usage("stored_joined: there is nothing to join");
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, 1, i);
    parts.push_back(check_object<StoredTensor>(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  return Convert<StoredTensor>::push(L, StoredTensor::joined(parts));
}
StoredTensor stored_transposed(StoredTensor& stored) { return stored.transposed(); }
StoredTensor stored_rows(StoredTensor& stored, int64_t first, int64_t count) {
  return stored.rows(first, count);
}
StoredTensor stored_reshaped(StoredTensor& stored, std::vector<int64_t> shape) {
  return stored.reshaped(std::move(shape));
}
Tensor stored_read(StoredTensor& stored) { return stored.read(); }
int stored_index(lua_State* L) {
  const auto& stored = check_object<StoredTensor>(L, 1);
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  const std::string_view name = lua_tostring(L, 2);
  if (name == "dtype") return Convert<DType>::push(L, stored.type().dtype);
  if (name == "shape") return Convert<std::vector<int64_t>>::push(L, stored.type().shape);
  return 0;
}
// {name = tensor} at `index`.
std::map<std::string, Tensor> tensors_at(lua_State* L, int index) {
  if (!lua_istable(L, index)) wrong_argument(L, index, "a table of tensors by name");
  std::map<std::string, Tensor> tensors;
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING) fail_usage("tensors that are written have names");
    tensors.emplace(Convert<std::string>::get(L, lua_gettop(L) - 1), check_object<Tensor>(L, lua_gettop(L)));
  }
  return tensors;
}
// {name = text} at `index`, or nothing.
std::map<std::string, std::string> metadata_at(lua_State* L, int index) {
  std::map<std::string, std::string> metadata;
  if (!lua_istable(L, index)) return metadata;
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1))
    metadata.emplace(Convert<std::string>::get(L, lua_gettop(L) - 1),
                     Convert<std::string>::get(L, lua_gettop(L)));
  return metadata;
}

// {{path =, tensors =, metadata =}, {path =, snapshot =} (as native.snapshot_write), {path =, json =},
// {path =, text =} or {path =, base64 =}}: they are written together beside what follows (Saving).
int save_files(lua_State* L) {
  std::vector<SavedFile> files;
  const int count = list_size(L, 1);
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, 1, i);
    const int file = lua_gettop(L);
    const Path path = field<Path>(L, file, "path").value_or(Path{});
    if (path.empty()) fail_usage("save_files: file {} has no path", i);
    lua_getfield(L, file, "metadata");
    lua_getfield(L, file, "tensors");
    lua_getfield(L, file, "json");
    lua_getfield(L, file, "snapshot");
    auto text = field<std::string>(L, file, "text");
    if (const auto base64 = field<std::string>(L, file, "base64")) {
      text = from_base64(*base64);
      if (!text) fail_usage("save_files: what belongs in '{}' is not base64", path.text);
    }
    if (lua_istable(L, file + 4))
      files.push_back({path, [path, content = snapshot_content_at(L, file + 4)] {
                         write_snapshot(path, content.manifest, content.parts, true);
                       }});
    else if (text)
      files.push_back({path, [path, text = *text] { write_file(path, text, true); }});
    else if (lua_istable(L, file + 2))
      files.push_back({path, [path, tensors = tensors_at(L, file + 2), metadata = metadata_at(L, file + 1)] {
                         write_safetensors(path, tensors, metadata, true);
                       }});
    else
      files.push_back({path, [path, text = json_file_at(L, file + 3)] { write_file(path, text, true); }});
    lua_settop(L, file - 1);
  }
  std::set<std::string> folders;
  for (const SavedFile& file : files)
    if (const std::string folder = folder_of(file.path.text); folders.insert(folder).second)
      remove_unfinished(file.path.with(folder));
  return Convert<SavingHandle>::push(L, std::make_shared<Saving>(std::move(files)));
}
bool saving_done(SavingHandle& saving) { return saving->done(); }
void saving_wait(SavingHandle& saving) { saving->wait(); }

// --- corpora and samplers

DocumentOptions documents_at(lua_State* L, int index) {
  DocumentOptions options;
  options.packing = field<bool>(L, index, "packing").value_or(false);
  options.ending = field<std::string>(L, index, "ending");
  options.ending_id = field<int32_t>(L, index, "ending_id");
  return options;
}

int new_corpus(lua_State* L) {
  if (!lua_istable(L, 1)) wrong_argument(L, 1, "a table of settings");
  const std::string kind = field<std::string>(L, 1, "kind").value_or("text");
  const double holdout = field<double>(L, 1, "holdout").value_or(0.1);
  const Path path = field<Path>(L, 1, "path").value_or(Path{});
  const auto vocabulary = [L] {
    lua_getfield(L, 1, "vocabulary");
    Json json = lua_isnil(L, -1) ? Json() : json_at(L, lua_gettop(L));
    lua_pop(L, 1);
    return json;
  };
  if (kind == "text") {
    TextCorpusOptions options;
    options.path = path;
    options.holdout = holdout;
    options.tokenizer = field<std::string>(L, 1, "tokenizer").value_or("char");
    options.model = field<Path>(L, 1, "model").value_or(Path{});
    options.most_bytes = field<int64_t>(L, 1, "most_bytes").value_or(options.most_bytes);
    options.vocabulary = vocabulary();
    options.documents = documents_at(L, 1);
    return Convert<CorpusHandle>::push(L, Corpus::from_text(options));
  }
  if (kind == "tokens") {
    TokenCorpusOptions options;
    options.path = path;
    options.holdout = holdout;
    options.width = field<int>(L, 1, "width").value_or(16);
    options.vocabulary = field<int64_t>(L, 1, "vocabulary").value_or(0);
    options.tokenizer_kind = field<std::string>(L, 1, "tokenizer").value_or("");
    options.tokenizer_model = field<Path>(L, 1, "model").value_or(Path{});
    lua_getfield(L, 1, "tokenizer_json");
    if (!lua_isnil(L, -1)) options.tokenizer = json_at(L, lua_gettop(L));
    lua_pop(L, 1);
    options.documents = documents_at(L, 1);
    return Convert<CorpusHandle>::push(L, Corpus::from_tokens(options));
  }
  if (kind == "examples") {
    ExampleCorpusOptions options;
    options.path = path;
    options.holdout = holdout;
    options.tokenizer = field<std::string>(L, 1, "tokenizer").value_or("huggingface");
    options.model = field<Path>(L, 1, "model").value_or(Path{});
    options.counts_all = field<bool>(L, 1, "counts_all").value_or(false);
    options.chat_template = field<Path>(L, 1, "chat_template").value_or(Path{});
    options.ending = field<std::string>(L, 1, "ending");
    options.packing = field<bool>(L, 1, "packing").value_or(false);
    options.preferences = field<bool>(L, 1, "preferences").value_or(false);
    options.vocabulary = vocabulary();
    return Convert<CorpusHandle>::push(L, Corpus::from_examples(options));
  }
  if (kind == "ids")
    return Convert<CorpusHandle>::push(
        L, Corpus::from_ids(field<std::vector<int32_t>>(L, 1, "ids").value_or(std::vector<int32_t>{}),
                            field<int64_t>(L, 1, "vocabulary").value_or(0), holdout));
  if (kind == "mixture") {
    std::vector<MixedCorpus> sources;
    lua_getfield(L, 1, "sources");
    const int list = lua_gettop(L), count = list_size(L, list);
    for (int i = 1; i <= count; ++i) {
      lua_rawgeti(L, list, i);
      lua_getfield(L, -1, "corpus");
      sources.push_back({check_object<CorpusHandle>(L, lua_gettop(L)),
                         field<double>(L, lua_gettop(L) - 1, "weight").value_or(1)});
      lua_pop(L, 2);
    }
    return Convert<CorpusHandle>::push(L, Corpus::from_mixture(std::move(sources)));
  }
  fail_usage("'{}' is not a kind of corpus; there are text, tokens, examples, ids, mixture", kind);
}

const Tokenizer& tokenizer_of(const CorpusHandle& corpus) {
  if (corpus->tokenizer() == nullptr)
    fail_usage("'{}' holds tokens, not text: it has no tokenizer to encode or decode with", corpus->name());
  return *corpus->tokenizer();
}
std::vector<int32_t> corpus_encode(CorpusHandle& corpus, std::string text) {
  return tokenizer_of(corpus).encode(text);
}
std::string corpus_decode(CorpusHandle& corpus, std::vector<int32_t> ids) {
  return tokenizer_of(corpus).decode(ids);
}
int corpus_vocabulary(lua_State* L) {  // JSON value, or nil for token files
  auto& corpus = check_object<CorpusHandle>(L, 1);
  if (corpus->tokenizer() == nullptr) return 0;
  push_json(L, corpus->tokenizer()->to_json());
  return 1;
}
CorpusHandle corpus_undivided(CorpusHandle& corpus, std::string split) {
  return corpus->undivided(split_named(split));
}
int64_t corpus_count(CorpusHandle& corpus, std::optional<std::string> split) {
  return split ? corpus->view(split_named(*split)).count : corpus->tokens();
}

// How many examples there are, how many are longer than the context, and how many of these have nothing to
// learn in it.
std::vector<int64_t> corpus_cuts(CorpusHandle& corpus, std::string split, int64_t context) {
  const ExampleCuts cuts = cuts_of(*corpus, split_named(split), context);
  return {cuts.examples, cuts.cut, cuts.empty};
}

int corpus_sampler(lua_State* L) {
  auto& corpus = check_object<CorpusHandle>(L, 1);
  if (!lua_istable(L, 2)) wrong_argument(L, 2, "a table of settings");
  SamplerOptions options;
  options.context = field<int64_t>(L, 2, "context").value_or(0);
  options.batch = field<int64_t>(L, 2, "batch").value_or(1);
  options.microbatch = field<int64_t>(L, 2, "microbatch").value_or(0);
  options.split = split_named(field<std::string>(L, 2, "split").value_or("train"));
  options.seed = static_cast<uint64_t>(field<int64_t>(L, 2, "seed").value_or(0));
  options.start = field<int64_t>(L, 2, "start").value_or(0);
  options.first = field<int64_t>(L, 2, "first").value_or(0);
  options.count = field<int64_t>(L, 2, "count").value_or(0);
  options.ahead = field<int>(L, 2, "ahead").value_or(2);
  const std::string objective = field<std::string>(L, 2, "objective").value_or("next_token");
  if (objective == "masked")
    options.objective = Objective::masked;
  else if (objective != "next_token")
    fail_usage("'{}' is not an objective; there are next_token, masked", objective);
  options.mask_share = field<double>(L, 2, "mask_share").value_or(options.mask_share);
  options.surrounded = field<bool>(L, 2, "surrounded").value_or(false);
  options.mask_token = field<int32_t>(L, 2, "mask_token").value_or(options.mask_token);
  return Convert<SamplerHandle>::push(L, std::make_shared<Sampler>(corpus, options));
}

int corpus_index(lua_State* L) {
  auto& corpus = check_object<CorpusHandle>(L, 1);
  if (lua_type(L, 2) != LUA_TSTRING) return 0;
  const std::string_view name = lua_tostring(L, 2);
  if (name == "vocab") return Convert<int64_t>::push(L, corpus->vocabulary_size());
  if (name == "known")  // token ids that text can be made of
    return Convert<int64_t>::push(L, corpus->tokenizer() != nullptr ? corpus->tokenizer()->vocabulary_size()
                                                                    : corpus->vocabulary_size());
  if (name == "mask_token") {  // nil: the tokenizer has none
    const auto mask = corpus->special_tokens().known_mask();
    return mask ? Convert<int32_t>::push(L, *mask) : 0;
  }
  if (name == "fingerprint")
    return Convert<std::string>::push(L, fmt::format("{:016x}", corpus->fingerprint()));
  if (name == "tokens") return Convert<int64_t>::push(L, corpus->tokens());
  if (name == "name") return Convert<std::string>::push(L, corpus->name());
  if (name == "examples" || name == "documents") {  // nil: it has none
    if (!corpus->has_examples() || corpus->has_documents() != (name == "documents")) return 0;
    return Convert<int64_t>::push(L, corpus->examples(Split::train) + corpus->examples(Split::holdout));
  }
  if (name == "holds_out") return Convert<bool>::push(L, corpus->holds_out());
  if (name == "rows") return Convert<int64_t>::push(L, corpus->rows());
  if (name == "packs") return Convert<bool>::push(L, corpus->packs());
  if (name == "mixed_packs") {  // of each source of a mixture 1 where it packs, else 0; nil: it mixes none
    std::vector<int64_t> packs;
    for (const MixedCorpus& source : corpus->sources()) packs.push_back(source.corpus->packs() ? 1 : 0);
    return packs.empty() ? 0 : Convert<std::vector<int64_t>>::push(L, packs);
  }
  if (name == "files") return Convert<int>::push(L, corpus->files());
  if (name == "skipped") return Convert<int>::push(L, corpus->skipped());
  return 0;
}

int sampler_next(lua_State* L) {  // -> {inputs = {...}, labels = {...}, count, cursor}, packed with starts
  const Batch batch = check_object<SamplerHandle>(L, 1)->next();
  lua_newtable(L);
  for (const auto& [name, tensors] : {std::pair{"inputs", &batch.inputs}, std::pair{"labels", &batch.labels},
                                      std::pair{"starts", &batch.starts}}) {
    if (tensors->empty()) continue;
    lua_newtable(L);
    for (size_t i = 0; i < tensors->size(); ++i) {
      push_tensor(L, (*tensors)[i]);
      lua_rawseti(L, -2, static_cast<int>(i) + 1);
    }
    lua_setfield(L, -2, name);
  }
  set_field(L, "count", static_cast<double>(batch.labelled));
  set_field(L, "cursor", static_cast<double>(batch.cursor));
  return 1;
}
int64_t sampler_cursor(SamplerHandle& sampler) { return sampler->cursor(); }
void sampler_seek(SamplerHandle& sampler, int64_t cursor) { sampler->seek(cursor); }
void sampler_close(SamplerHandle& sampler) { sampler->close(); }
// How many examples share how many rows, how many tokens they have, and how many pieces of documents do.
std::vector<int64_t> sampler_packed(SamplerHandle& sampler) {
  const PackedExamples packed = sampler->packed();
  return {packed.examples, packed.rows, packed.tokens, packed.pieces};
}

// --- a tokenizer without a corpus: of a saved vocabulary

int new_tokenizer(lua_State* L) {  // vocabulary: what corpus:vocabulary() gave
  return Convert<TokenizerHandle>::push(L, tokenizer_from_json(json_at(L, 1), "the vocabulary"));
}
std::vector<int32_t> tokenizer_encode(TokenizerHandle& tokenizer, std::string text) {
  return tokenizer->encode(text);
}
std::string tokenizer_decode(TokenizerHandle& tokenizer, std::vector<int32_t> ids) {
  return tokenizer->decode(ids);
}
std::vector<int32_t> tokenizer_prefix(TokenizerHandle& tokenizer) { return tokenizer->prefix(); }
std::vector<int32_t> corpus_prefix(CorpusHandle& corpus) { return tokenizer_of(corpus).prefix(); }
// Ids of tokens that are no text, such as <|im_start|>.
std::vector<int32_t> tokenizer_special(TokenizerHandle& tokenizer) { return tokenizer->special_tokens().all; }
std::vector<int32_t> corpus_special(CorpusHandle& corpus) {
  return tokenizer_of(corpus).special_tokens().all;
}
// A conversation, {messages =, tools =, ...} or this as a JSON text, which keeps the order of members, as the
// chat template of the tokenizer's folder writes it, or another one; with true as the second argument a reply
// is asked for.
int tokenizer_chat(lua_State* L) {
  auto& tokenizer = check_object<TokenizerHandle>(L, 1);
  Conversation conversation;
  Json given = json_at(L, 2);
  if (const std::string* text = as_string(given)) given = parse_json(*text, "the conversation");
  if (!given.is_object()) wrong_argument(L, 2, "a table with messages");
  conversation.messages = given.value("messages", Json::array());
  conversation.tools = given.value("tools", Json());
  conversation.variables = given.value("variables", Json());
  conversation.asks_for_reply = lua_toboolean(L, 3) != 0;
  const std::string* source = as_string(find_member(given, "template"));
  const auto chat = source == nullptr ? ChatTemplate::of(*tokenizer)
                                      : std::make_unique<ChatTemplate>(*source, special_tokens_of(*tokenizer),
                                                                       tokenizer->added_tokens());
  if (chat == nullptr) return 0;
  return Convert<std::string>::push(L, chat->render(conversation));
}
int tokenizer_index(lua_State* L) {
  auto& tokenizer = check_object<TokenizerHandle>(L, 1);
  if (lua_type(L, 2) == LUA_TSTRING && std::string_view(lua_tostring(L, 2)) == "vocab")
    return Convert<int64_t>::push(L, tokenizer->vocabulary_size());
  return 0;
}

// --- rows of tensors, in the order of an epoch

// Rows of a packed tensor, [rows, ...]: those that samples [start, start + count) of an endless run over its
// first `size` rows have.
Tensor shuffled_rows(Tensor& tensor, int64_t size, int64_t seed, int64_t start, int64_t count) {
  if (tensor.shape().empty()) fail_usage("shuffled_rows: a scalar has no rows");
  if (!tensor.layout().is_contiguous())
    fail_usage("shuffled_rows: this is a strided view of {}; take :contiguous() first",
               to_string(tensor.type()));
  if (size < 1 || size > tensor.shape()[0])
    fail_usage("shuffled_rows: {} rows of {}", size, to_string(tensor.type()));
  if (start < 0 || count < 0) fail_usage("shuffled_rows: {} rows from row {} on", count, start);
  TensorType type = tensor.type();
  type.shape[0] = count;
  Tensor result(type);
  const int64_t bytes = count == 0 ? 0 : type.bytes() / count;
  for (int64_t i = 0; i < count && bytes > 0; ++i) {
    const int64_t sample = start + i;
    const int64_t row = permuted(static_cast<uint64_t>(seed), sample / size, size, sample % size);
    std::memcpy(result.bytes() + i * bytes, tensor.bytes() + row * bytes, static_cast<size_t>(bytes));
  }
  return result;
}

// How many labels of a tensor i32[...] are not ignored by a loss.
int64_t counted_labels(Tensor& labels) {
  if (labels.dtype() != DType::i32)
    fail_usage("counted_labels: labels are i32, these are {}", to_string(labels.type()));
  const Tensor packed = labels.contiguous();
  const auto all = packed.span<int32_t>();
  return std::count_if(all.begin(), all.end(), [](int32_t label) { return label != kIgnoredLabel; });
}

// {kind = "shapes", count, size, classes, seed} or {kind = "cifar10", path} -> pixels, labels, how many are
// held out
int new_images(lua_State* L) {
  if (!lua_istable(L, 1)) wrong_argument(L, 1, "a table of settings");
  const std::string kind = field<std::string>(L, 1, "kind").value_or("shapes");
  Images images;
  if (kind == "shapes")
    images = draw_shapes(field<int64_t>(L, 1, "count").value_or(0), field<int64_t>(L, 1, "size").value_or(32),
                         field<int64_t>(L, 1, "classes").value_or(kShapes),
                         field<int64_t>(L, 1, "seed").value_or(0));
  else if (kind == "cifar10")
    images = read_cifar10(field<Path>(L, 1, "path").value_or(Path{}));
  else
    fail_usage("'{}' is not a kind of images; there are shapes, cifar10", kind);
  return Convert<Tensor>::push(L, images.pixels) + Convert<Tensor>::push(L, images.labels) +
         Convert<int64_t>::push(L, images.held);
}

// --- a token drawn from logits

// Among the first `known` of them.
int64_t draw(Tensor& logits, double temperature, std::optional<int64_t> top_k, double top_p, double uniform,
             std::optional<int64_t> known) {
  const Tensor row = logits.to(DType::f32).contiguous();
  DrawOptions options;
  options.temperature = temperature;
  options.top_k = top_k;
  options.top_p = top_p;
  const auto all = row.span<float>();
  if (known && *known < 1) fail_usage("draw: of the first {} tokens none can be drawn", *known);
  const size_t count = std::min(all.size(), static_cast<size_t>(known.value_or(row.elements())));
  return draw_token(all.first(count), options, uniform);
}

}  // namespace

void add_data(lua_State* L) {
  make_class<CorpusHandle>(
      L,
      {bind<&corpus_encode>("encode"), bind<&corpus_prefix>("prefix"), bind<&corpus_special>("special"),
       bind<&corpus_decode>("decode"), bind<&corpus_vocabulary>("vocabulary"), bind<&corpus_count>("count"),
       bind<&corpus_undivided>("undivided"), bind<&corpus_sampler>("sampler"), bind<&corpus_cuts>("cuts")},
      &corpus_index);
  make_class<SamplerHandle>(
      L, {bind<&sampler_next>("next"), bind<&sampler_cursor>("cursor"), bind<&sampler_seek>("seek"),
          bind<&sampler_close>("close"), bind<&sampler_packed>("packed")});
  make_class<TokenizerHandle>(
      L,
      {bind<&tokenizer_encode>("encode"), bind<&tokenizer_prefix>("prefix"),
       bind<&tokenizer_special>("special"), bind<&tokenizer_decode>("decode"), bind<&tokenizer_chat>("chat")},
      &tokenizer_index);
  make_class<SavingHandle>(L, {bind<&saving_done>("done"), bind<&saving_wait>("wait")});
  make_class<StoredTensor>(L,
                           {bind<&stored_transposed>("transposed"), bind<&stored_rows>("rows"),
                            bind<&stored_reshaped>("reshaped"), bind<&stored_read>("read")},
                           &stored_index);
  set_functions(L, "native.",
                {bind<&new_corpus>("corpus"), bind<&new_tokenizer>("tokenizer"), bind<&draw>("draw"),
                 bind<&shuffled_rows>("shuffled_rows"), bind<&counted_labels>("counted_labels"),
                 bind<&new_images>("images"), bind<&safetensors_open>("safetensors_open"),
                 bind<&stored_joined>("stored_joined"), bind<&save_files>("save_files"),
                 bind<&json_read>("json_read"), bind<&json_write>("json_write"),
                 bind<&json_encode>("json_encode"), bind<&json_decode>("json_decode")});
  lua_pushlightuserdata(L, nullptr);
  lua_setfield(L, -2, "null");
}

}  // namespace het::lua
