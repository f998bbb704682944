#include "core/data/huggingface/special_tokens.h"

#include <map>
#include <set>

#include "core/data/huggingface/part.h"
#include "core/data/tokenizer_kinds.h"

namespace het::huggingface {
namespace {

// The token that a text, or an object with a text, names; null: none.
const std::string* named(const Json& value) {
  const std::string* text = as_string(&value);
  return text != nullptr ? text : as_string(find_member(value, "content"));
}

struct Named {
  std::optional<std::string> mask;
  std::set<std::string> all;
};

// Adds those of one file: `mask_token` and the like, and lists or objects of others.
void add_named(Named& to, const Json& file) {
  const Json::object_t* members = as_object(file);
  if (members == nullptr) return;
  each_named_token(file, [&](const std::string& member, const std::string& text) {
    to.all.insert(text);
    if (member == "mask_token") to.mask = text;
  });
  for (const auto& [member, value] : *members) {
    if (member != "additional_special_tokens" && member != "extra_special_tokens") continue;
    const auto add = [&](const Json& one) {
      if (const std::string* text = named(one)) to.all.insert(*text);
    };
    if (const Json::array_t* list = as_array(value))
      for (const Json& one : *list) add(one);
    else if (const Json::object_t* object = as_object(value))
      for (const auto& [role, one] : *object) add(one);
  }
}

// Ids of the model's tokens, by text: an object, or Unigram's list of [text, score].
std::optional<int32_t> id_in(const Json* vocabulary, const std::string& token) {
  if (vocabulary == nullptr) return std::nullopt;
  if (const Json::array_t* list = as_array(vocabulary)) {
    for (size_t i = 0; i < list->size(); ++i) {
      const Json::array_t* entry = as_array((*list)[i]);
      const std::string* text = entry == nullptr || entry->empty() ? nullptr : as_string((*entry)[0]);
      if (text != nullptr && *text == token) return static_cast<int32_t>(i);
    }
    return std::nullopt;
  }
  const Json* found = find_member(*vocabulary, token);
  return found == nullptr ? std::nullopt : std::optional(Part{found, token}.id());
}

}  // namespace

void each_named_token(const Json& file,
                      const std::function<void(const std::string&, const std::string&)>& visit) {
  const Json::object_t* members = as_object(file);
  if (members == nullptr) return;
  for (const auto& [member, value] : *members)
    if (const std::string* text = member.ends_with("_token") ? named(value) : nullptr) visit(member, *text);
}

SpecialTokens special_tokens_in(const std::string& tokenizer, const Json& files) {
  Named names;
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"})
    if (const std::string* text = as_string(find_member(files, name)))
      add_named(names, parse_json(*text, name));

  const Json json = parse_json(tokenizer, "tokenizer.json");
  const Part root{&json, "tokenizer.json"};
  SpecialTokens special;
  std::set<int32_t> all;
  std::map<std::string, int32_t> added;
  if (const Part list = root["added_tokens"]; list.present())
    for (const Part& part : list.list()) {
      const auto entry = added.emplace(part["content"].text(), part["id"].id()).first;
      if (!part["special"].flag(false)) continue;
      all.insert(entry->second);
      if (!names.mask && names_mask(entry->first)) special.mask = entry->second;
    }
  const Json* vocabulary = root["model"]["vocab"].json;
  for (const std::string& name : names.all) {
    const auto found = added.find(name);
    const std::optional<int32_t> id =
        found == added.end() ? id_in(vocabulary, name) : std::optional(found->second);
    if (id) all.insert(*id);
    if (name == names.mask) special.mask = id;
  }
  if (names.mask && !special.mask) special.lost_mask = *names.mask;
  special.all.assign(all.begin(), all.end());
  return special;
}

}  // namespace het::huggingface
