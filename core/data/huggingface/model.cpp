#include "core/data/huggingface/model.h"

namespace het::huggingface {

std::unordered_map<std::string, int32_t> read_vocabulary(const Part& vocabulary, Shown& shown) {
  const Json::object_t* entries = as_object(vocabulary.json);
  if (entries == nullptr || entries->empty())
    fail_usage("{}: an object from tokens to ids is wanted", vocabulary.name);
  std::unordered_map<std::string, int32_t> by_name;
  for (const auto& [token, id] : *entries) {
    const int32_t number = Part{&id, fmt::format("{}['{}']", vocabulary.name, token)}.id();
    by_name.emplace(token, number);
    shown.set(number, token);
  }
  if (shown.texts.size() > 2 * entries->size() + 65536)
    fail_usage("{}: {} tokens have ids up to {}", vocabulary.name, entries->size(), shown.texts.size() - 1);
  return by_name;
}

std::unique_ptr<Model> make_model(const Part& model, bool byte_level, Shown& shown) {
  if (!model.present()) fail_usage("{} is missing", model.name);
  const std::string type = model["type"].text_or("BPE");
  if (type == "BPE") return make_byte_pairs(model, byte_level, shown);
  if (type == "WordPiece") return make_word_piece(model, shown);
  if (type == "Unigram") return make_unigram(model, shown);
  model.refuse(fmt::format("the model '{}' (BPE, WordPiece and Unigram are)", type));
}

}  // namespace het::huggingface
