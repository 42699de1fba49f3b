// ctest-labels: fuzz
// Mutated files of a Hugging Face folder: the model is imported or refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/data/text/tokenizer.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/models/huggingface.h"
#include "tests/base/temporary_folder.h"
#include "tests/fuzz.h"
#include "tests/models/small_models.h"

namespace dovetail::models::import_fuzz_test {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// A model of each architecture, in a folder each.
class ImportFuzz : public ::testing::Test {
 protected:
  ImportFuzz() {
    ModelConfig llama = testing::llama_variant();
    llama.layers = 1;
    llama.width = llama.ffn_width = 8;
    llama.heads = 2;
    llama.kv_heads = 1;
    llama.vocab_size = 11;
    ModelConfig mixtral = llama, gpt2 = testing::gpt2_variant();
    mixtral.moe.experts = 3;
    gpt2.layers = 2;
    gpt2.width = 8;
    gpt2.heads = 2;
    gpt2.vocab_size = 13;
    for (const ModelConfig& config : {llama, mixtral, gpt2}) {
      models_.push_back(testing::make_model(config));
      folders_.push_back(folder_ / std::to_string(folders_.size()));
      export_huggingface(*models_.back(), "bytes", "", folders_.back());
    }
  }

  std::vector<std::string> contents(const char* name) const {
    std::vector<std::string> texts;
    for (const auto& folder : folders_) texts.push_back(read_file(folder / name));
    return texts;
  }

  void expect_imported(size_t i) const {
    const auto imported = import_huggingface(folders_[i]);
    const auto ours = models_[i]->named_parameters(), theirs = imported->named_parameters();
    ASSERT_EQ(theirs.size(), ours.size());
    for (const auto& parameter : ours)
      EXPECT_TRUE(at::equal(theirs[parameter.key()], parameter.value()));
  }

  test::TemporaryFolder folder_;
  std::vector<std::filesystem::path> folders_;
  std::vector<std::shared_ptr<GPT>> models_;
};

TEST_F(ImportFuzz, ConfigsGiveTheModelOrAreRefused) {
  test::fuzz_each(contents("config.json"), 1500, 83, [&](const std::string& input, size_t i) {
    test::overwrite(folders_[i] / "config.json", input);
    expect_imported(i);
  });
}

TEST_F(ImportFuzz, HeadersOfSafetensorsAreImportedOrRefused) {
  std::vector<std::string> headers, data;
  for (const std::string& file : contents("model.safetensors")) {
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    headers.push_back(file.substr(sizeof length, length));
    data.push_back(file.substr(sizeof length + length));
  }
  test::fuzz_each(headers, 1500, 89, [&](const std::string& input, size_t i) {
    const uint64_t length = input.size();
    const std::string prefix(reinterpret_cast<const char*>(&length), sizeof length);
    test::overwrite(folders_[i] / "model.safetensors", prefix + input + data[i]);
    EXPECT_EQ(import_huggingface(folders_[i])->named_parameters().size(),
              models_[i]->named_parameters().size());
  });
}

TEST_F(ImportFuzz, IndexesOfShardsGiveTheModelOrAreRefused) {
  std::vector<std::string> indexes;
  for (const auto& folder : folders_) {
    Tensors shards[2];
    nlohmann::json weight_map;
    const io::SafetensorsFile whole(folder / "model.safetensors");
    for (const std::string& name : whole.names()) {
      const size_t shard = weight_map.size() % 2;
      shards[shard][name] = whole.read(name);
      weight_map[name] = shard == 0 ? "a.safetensors" : "b.safetensors";
    }
    io::write_safetensors(folder / "a.safetensors", shards[0]);
    io::write_safetensors(folder / "b.safetensors", shards[1]);
    std::filesystem::remove(folder / "model.safetensors");
    indexes.push_back(
        nlohmann::json{{"metadata", {{"total_size", 100}}}, {"weight_map", weight_map}}.dump(1));
  }
  test::fuzz_each(indexes, 1500, 97, [&](const std::string& input, size_t i) {
    test::overwrite(folders_[i] / "model.safetensors.index.json", input);
    expect_imported(i);
  });
}

TEST_F(ImportFuzz, TokenizersAreReadOrRefused) {
  const auto path = folders_[0] / "tokenizer.json";
  test::fuzz({read_file(path)}, 500, 101, [&](const std::string& input) {
    test::overwrite(path, input);
    const auto tokenizer = data::load_tokenizer(path);
    for (const int32_t id : tokenizer->encode("the cats\xff 12"))
      EXPECT_LT(id, tokenizer->vocab_size());
  });
}

}  // namespace
}  // namespace dovetail::models::import_fuzz_test
