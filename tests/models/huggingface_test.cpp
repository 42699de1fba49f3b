// Export and import held against `transformers` (huggingface_oracle.py).
#include "dovetail/models/huggingface.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/io/safetensors.h"
#include "small_models.h"

namespace dovetail::models::huggingface_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;

const std::vector<std::string> kModels = {"llama_untied",  "llama_tied", "llama_head_dim",
                                          "llama_sharded", "mixtral",    "mixtral_top3",
                                          "gpt2",          "gpt2_inner", "gpt2_bare"};

/// Folders as other programs and older versions leave them: `make_variants` of the oracle.
const std::vector<std::string> kVariants = {
    "own_head",          "equal_head",       "head_alone",  "gpt2_own_head",   "gpt2_untied",
    "gpt2_tanh",         "mixtral_own_head", "hidden_rope", "no_window",       "half",
    "old_rotary",        "old_masks",        "short_index", "whole_and_index", "mixtral_kv",
    "mixtral_default_kv"};

void expect_close(const at::Tensor& ours, const at::Tensor& theirs, const std::string& name) {
  ASSERT_EQ(ours.sizes(), theirs.sizes()) << name;
  EXPECT_LT(testing::largest_difference(ours, theirs), 1e-5 * theirs.abs().max().item<double>())
      << name;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.place() + ": " + error.what();
  }
  return "no error";
}

/// Models made by transformers, once for all tests.
class Huggingface : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    status_ =
        testing::run_oracle("huggingface_oracle.py", "make '" + folder_->path().string() + "'");
  }
  static void TearDownTestSuite() { delete folder_; }

  void SetUp() override {
    if (status_ == -1) GTEST_SKIP() << "DOVETAIL_PYTHON is not set";
    ASSERT_EQ(status_, 0) << "huggingface_oracle.py make failed";
  }

  static fs::path made(const std::string& name) { return folder_->path() / name; }

  static test::TemporaryFolder* folder_;
  static int status_;
};
test::TemporaryFolder* Huggingface::folder_ = nullptr;
int Huggingface::status_ = 0;

TEST_F(Huggingface, ImportedModelsHaveTheLogitsOfTransformers) {
  for (const auto& name : kModels) {
    const auto model = import_huggingface(made(name));
    const io::SafetensorsFile expected(made(name) / "expected.safetensors");
    expect_close(model->logits(expected.read("tokens")), expected.read("logits"), name);
  }
}

TEST_F(Huggingface, VariantsOfAFolderHaveTheLogitsOfTransformers) {
  for (const auto& name : kVariants) {
    ::testing::internal::CaptureStderr();
    const auto model = import_huggingface(made(name));
    const std::string said = ::testing::internal::GetCapturedStderr();
    const io::SafetensorsFile expected(made(name) / "expected.safetensors");
    expect_close(model->logits(expected.read("tokens")), expected.read("logits"), name);
    if (name.ends_with("own_head")) {
      EXPECT_THAT(said, ::testing::AllOf(HasSubstr("warning"), HasSubstr("lm_head.weight")))
          << name;
    } else if (name == "whole_and_index") {
      EXPECT_THAT(said,
                  HasSubstr("model.safetensors.index.json and the shards that it names are not"));
    } else {
      EXPECT_EQ(said, "") << name;
    }
    EXPECT_EQ(model->config().tied, name == "equal_head" || name == "head_alone" ||
                                        name == "gpt2_tanh" || name == "hidden_rope" ||
                                        name == "no_window" || name.starts_with("old_"))
        << name;
  }
}

TEST_F(Huggingface, ExportedModelsHaveTheirLogitsInTransformers) {
  const test::TemporaryFolder out;
  const auto export_model = [&](GPT& model, const std::string& name,
                                const std::string& tokenizer_content) {
    const auto folder = out.path() / name;
    export_huggingface(model, tokenizer_content.empty() ? "bytes" : "bpe", tokenizer_content,
                       folder);
    const auto tokens =
        testing::random_tokens(2, model.config().context, model.config().vocab_size);
    io::write_safetensors(folder / "expected.safetensors",
                          {{"tokens", tokens}, {"logits", model.logits(tokens).detach()}});
  };
  const auto bpe = read_file(made("tokenizer.json"));
  write_file_atomically(out.path() / "tokenizer.json", bpe);
  auto llama = testing::llama_variant(), gpt2 = testing::gpt2_variant();
  llama.vocab_size = gpt2.vocab_size = 320;
  export_model(*testing::make_model(llama), "ours_llama", "");
  export_model(*testing::make_model(gpt2), "ours_gpt2_bpe", bpe);
  llama.tied = true;
  llama.rotary_theta = 700;
  export_model(*testing::make_model(llama), "ours_llama_tied_bpe", bpe);
  auto mixtral = testing::llama_variant();
  mixtral.vocab_size = 320;
  mixtral.moe.experts = 6;
  mixtral.moe.ffn_width = 44;
  export_model(*testing::make_model(mixtral), "ours_mixtral", "");
  // There and back again.
  export_model(*import_huggingface(made("mixtral")), "again_mixtral", "");
  export_model(*import_huggingface(made("llama_head_dim")), "again_llama", "");
  export_model(*import_huggingface(made("gpt2_inner")), "again_gpt2", "");
  export_model(*import_huggingface(made("gpt2_own_head")), "again_gpt2_own_head", "");
  EXPECT_EQ(testing::run_oracle("huggingface_oracle.py", "check '" + out.path().string() + "'"), 0);
}

TEST_F(Huggingface, TheRoundTripKeepsEveryBit) {
  const test::TemporaryFolder out;
  auto mixtral = testing::llama_variant();
  mixtral.moe.experts = 4;
  mixtral.moe.load_loss = 0.02;
  for (const auto& config : {testing::llama_variant(), mixtral, testing::gpt2_variant()}) {
    const auto model = testing::make_model(config);
    export_huggingface(*model, "bytes", "", out.path());
    const auto again = import_huggingface(out.path());
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(at::equal(item.value(), again->named_parameters()[item.key()])) << item.key();
    }
    EXPECT_EQ(again->config().ffn_width, model->config().ffn_width);
    EXPECT_EQ(again->config().context, model->config().context);
    EXPECT_EQ(again->config().norm_eps, model->config().norm_eps);
    EXPECT_EQ(again->config().moe, model->config().moe);
  }
}

TEST_F(Huggingface, ABFloat16ModelIsWrittenBitForBit) {
  const test::TemporaryFolder out;
  const auto model = testing::make_model(testing::llama_variant(), 1, at::kBFloat16);
  export_huggingface(*model, "bytes", "", out.path());
  const io::SafetensorsFile file(out.path() / "model.safetensors");
  EXPECT_EQ(file.dtype("lm_head.weight"), at::kBFloat16);
  EXPECT_TRUE(at::equal(file.read("lm_head.weight"), model->named_parameters()["head.weight"]));
  EXPECT_EQ(Json::parse(read_file(out.path() / "config.json"))["torch_dtype"], "bfloat16");
}

/// A copy of a made model to break.
fs::path broken(const fs::path& source, const test::TemporaryFolder& scratch,
                const std::function<void(Json&)>& edit) {
  const auto folder = scratch.path() / "broken";
  fs::remove_all(folder);
  fs::copy(source, folder);
  auto config = Json::parse(read_file(folder / "config.json"));
  edit(config);
  write_file_atomically(folder / "config.json", config.dump());
  return folder;
}

TEST_F(Huggingface, ImportNamesWhatIsNotSupported) {
  struct Case {
    const char* model;
    const char* message;
    std::function<void(Json&)> edit;
  };
  const std::vector<Case> cases = {
      {"gpt2", "model_type = \"mamba\"", [](Json& c) { c["model_type"] = "mamba"; }},
      {"gpt2", "model_type is missing", [](Json& c) { c.erase("model_type"); }},
      {"gpt2", "n_layer is missing", [](Json& c) { c.erase("n_layer"); }},
      {"gpt2", "n_layer = \"2\" has the wrong type", [](Json& c) { c["n_layer"] = "2"; }},
      {"gpt2", "num_attention_heads = 8 is not supported, only 4",
       [](Json& c) { c["num_attention_heads"] = 8; }},
      {"gpt2", "scale_attn_by_inverse_layer_idx = true",
       [](Json& c) { c["scale_attn_by_inverse_layer_idx"] = true; }},
      {"gpt2", "activation_function = \"gelu\"",
       [](Json& c) { c["activation_function"] = "gelu"; }},
      {"llama_untied", "rope_parameters.factor = 2.0",
       [](Json& c) { c["rope_parameters"]["factor"] = 2.0; }},
      {"llama_untied", "rope_parameters.full_attention = ",
       [](Json& c) { c["rope_parameters"] = {{"full_attention", {{"rope_theta", 5.0}}}}; }},
      {"llama_untied", "layer_types has \"sliding_attention\"",
       [](Json& c) { c["layer_types"] = {"full_attention", "sliding_attention"}; }},
      {"gpt2", "activation_function = \"relu\"",
       [](Json& c) { c["activation_function"] = "relu"; }},
      {"gpt2", "config.json: layers = 0", [](Json& c) { c["n_layer"] = 0; }},
      {"gpt2", "transformer.h.2", [](Json& c) { c["n_layer"] = 3; }},
      {"gpt2", "h.1.", [](Json& c) { c["n_layer"] = 1; }},
      {"gpt2", "config.json asks for [71, 40]", [](Json& c) { c["vocab_size"] = 71; }},
      {"llama_untied", "hidden_act = \"gelu\"", [](Json& c) { c["hidden_act"] = "gelu"; }},
      {"llama_untied", "attention_bias = true", [](Json& c) { c["attention_bias"] = true; }},
      {"llama_untied", "rope_parameters.rope_type = \"llama3\"",
       [](Json& c) { c["rope_parameters"]["rope_type"] = "llama3"; }},
      {"llama_untied", "rope_scaling.type = \"linear\"",
       [](Json& c) { c["rope_scaling"] = {{"type", "linear"}}; }},
      {"llama_untied", "self_attn.k_proj", [](Json& c) { c["num_key_value_heads"] = 3; }},
      {"mixtral", "sliding_window = 8 is not supported", [](Json& c) { c["sliding_window"] = 8; }},
      {"mixtral", "router_jitter_noise = 0.1", [](Json& c) { c["router_jitter_noise"] = 0.1; }},
      {"mixtral", "num_experts_per_tok = 1", [](Json& c) { c["num_experts_per_tok"] = 1; }},
      {"mixtral", "block_sparse_moe.gate.weight is [5, 48], but config.json asks for [6, 48]",
       [](Json& c) { c["num_local_experts"] = 6; }},
      {"llama_tied", "lm_head.weight is missing",
       [](Json& c) { c["tie_word_embeddings"] = false; }},
  };
  const std::vector<std::pair<const char*, Json>> keys = {
      {"sliding_window", 8},
      {"attn_logit_softcapping", 50.0},
      {"final_logit_softcapping", 30.0},
      {"partial_rotary_factor", 0.5},
      {"mlp_bias", true},
      {"quantization_config", {{"quant_method", "fp8"}}},
      {"is_causal", false},
      {"use_qk_norm", true},
      {"residual_multiplier", 0.2},
      {"transformers_weights", "other.safetensors"}};
  const test::TemporaryFolder scratch;
  for (const auto& [key, value] : keys) {
    const auto folder = broken(made("llama_tied"), scratch, [&](Json& c) { c[key] = value; });
    EXPECT_THAT(error_of([&] { import_huggingface(folder); }), HasSubstr(std::string(key) + " = "))
        << key;
  }
  for (const auto& item : cases) {
    const auto folder = broken(made(item.model), scratch, item.edit);
    EXPECT_THAT(error_of([&] { import_huggingface(folder); }), HasSubstr(item.message));
  }
}

/// A copy of a made model with more or other tensors.
fs::path with_tensors(const fs::path& source, const test::TemporaryFolder& scratch,
                      const std::map<std::string, at::Tensor>& changes) {
  const auto folder = broken(source, scratch, [](Json&) {});
  std::map<std::string, at::Tensor> tensors;
  {
    const io::SafetensorsFile file(folder / "model.safetensors");
    for (const auto& name : file.names()) tensors[name] = file.read(name);
  }
  for (const auto& [name, tensor] : changes) tensors[name] = tensor;
  io::write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  return folder;
}

TEST_F(Huggingface, ImportUsesEveryTensorOrNamesIt) {
  const std::string layer = "model.layers.1.self_attn.";
  struct Case {
    const char* model;
    std::string tensor;
    at::Tensor value;
    const char* help;
  };
  const std::vector<Case> cases = {
      {"llama_tied", layer + "q_proj.bias", at::zeros({48}), "biases"},
      {"llama_tied", layer + "q_norm.weight", at::ones({8}), "norm"},
      {"llama_tied", layer + "q_proj.lora_A.weight", at::ones({4, 48}), "merge"},
      {"llama_tied", layer + "q_proj.weight_scale", at::ones({1}), "dequantize"},
      {"llama_tied", layer + "q_proj.weight", at::ones({48, 48}, at::kChar), "dequantize"},
      {"llama_tied", layer + "q_proj.weight", at::ones({48, 48}).to(at::kFloat8_e4m3fn),
       "dequantize"},
      {"llama_tied", layer + "rotary_emb.inv_freq", at::ones({4}), "rope_theta"},
      {"llama_tied", "lm_head.bias", at::zeros({70}), "biases"},
      {"llama_tied", "score.weight", at::zeros({2, 48}), "save_pretrained"},
      {"llama_tied", "weight", at::zeros({70, 48}), "save_pretrained"},
      {"gpt2", "transformer.h.0.attn.bias", at::zeros({120}), "constant"},
      {"gpt2", "transformer.h.0.attn.bias", at::ones({1, 1, 24, 24}), "constant"},
      {"gpt2", "transformer.h.0.attn.masked_bias", at::zeros({}), "constant"},
      {"gpt2", "wte.weight", at::zeros({70, 40}), "save_pretrained"},
      {"gpt2", "multiple_choice_head.summary.weight", at::zeros({1, 40}), "save_pretrained"},
  };
  const test::TemporaryFolder scratch;
  for (const auto& item : cases) {
    const auto folder = with_tensors(made(item.model), scratch, {{item.tensor, item.value}});
    try {
      import_huggingface(folder);
      ADD_FAILURE() << item.tensor;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("tensor " + item.tensor));
      EXPECT_THAT(error.help(), HasSubstr(item.help)) << item.tensor;
    }
  }
  ::testing::internal::CaptureStderr();
  import_huggingface(with_tensors(made("llama_tied"), scratch,
                                  {{"model.norm.weight", at::full({48}, 0.1, at::kDouble)}}));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("float64"));
}

bool same_parameters(const GPT& a, const GPT& b) {
  const auto others = b.named_parameters();
  bool same = a.named_parameters().size() == others.size();
  for (const auto& item : a.named_parameters())
    same = same && at::equal(item.value(), others[item.key()]);
  return same;
}

TEST_F(Huggingface, ImportRemovesPrefixesOfWrappersFromAllNames) {
  const test::TemporaryFolder scratch;
  const auto wrapped = [&](const std::string& prefix, const std::string& except) {
    const auto folder = broken(made("llama_tied"), scratch, [](Json&) {});
    std::map<std::string, at::Tensor> tensors;
    const io::SafetensorsFile file(made("llama_tied") / "model.safetensors");
    for (const auto& name : file.names())
      tensors[name == except ? name : prefix + name] = file.read(name);
    io::write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
    return folder;
  };
  const auto plain = import_huggingface(made("llama_tied"));
  for (const std::string prefix :
       {"module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."}) {
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(same_parameters(*import_huggingface(wrapped(prefix, "")), *plain)) << prefix;
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("is removed from the names of all tensors"));
  }
  EXPECT_THAT(error_of([&] { import_huggingface(wrapped("module.", "model.norm.weight")); }),
              ::testing::AllOf(HasSubstr("has the prefix module. of Dist"),
                               HasSubstr("model.norm.weight has not")));
}

TEST_F(Huggingface, ImportNamesTheFilesThatAreMissing) {
  const test::TemporaryFolder scratch;
  auto folder = broken(made("llama_sharded"), scratch, [](Json&) {});
  const auto index = Json::parse(read_file(folder / "model.safetensors.index.json"));
  std::set<std::string> shards;
  for (const auto& file : index["weight_map"]) shards.insert(file.get<std::string>());
  ASSERT_GT(shards.size(), 1u);
  fs::remove(folder / *shards.begin());
  EXPECT_THAT(error_of([&] { import_huggingface(folder); }),
              ::testing::AllOf(HasSubstr("missing"), HasSubstr(*shards.begin())));
  fs::remove(folder / "model.safetensors.index.json");
  EXPECT_THAT(error_of([&] { import_huggingface(folder); }),
              HasSubstr("files of the model; missing: " + *shards.begin()));
  fs::copy_file(made("llama_sharded") / *shards.begin(), folder / *shards.begin());
  EXPECT_TRUE(
      same_parameters(*import_huggingface(folder), *import_huggingface(made("llama_sharded"))));
  fs::copy_file(folder / *shards.begin(), folder / "model-00001-of-00099.safetensors");
  EXPECT_THAT(error_of([&] { import_huggingface(folder); }), HasSubstr("are of two models"));
  folder = broken(made("llama_tied"), scratch, [](Json&) {});
  fs::rename(folder / "model.safetensors", folder / "pytorch_model.bin");
  EXPECT_THAT(error_of([&] { import_huggingface(folder); }), HasSubstr("pytorch_model.bin"));
  write_file_atomically(folder / "adapter_config.json", "{}");
  EXPECT_THAT(error_of([&] { import_huggingface(folder); }), HasSubstr("adapter"));
}

TEST_F(Huggingface, ImportRefusesFoldersThatAreNotModels) {
  const test::TemporaryFolder scratch;
  EXPECT_THROW(import_huggingface(scratch.path() / "absent"), UserError);
  write_file_atomically(scratch.path() / "config.json", "{");
  EXPECT_THAT(error_of([&] { import_huggingface(scratch.path()); }),
              HasSubstr("config.json is not valid JSON"));
  for (const char* value : {"NaN", "Infinity", "-Infinity"}) {
    write_file_atomically(scratch.path() / "config.json",
                          fmt::format("{{\n \"rope_theta\": {}\n}}", value));
    try {
      import_huggingface(scratch.path());
      ADD_FAILURE() << value;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("config.json is not valid JSON: line 2, column 1"));
      EXPECT_THAT(error.help(), HasSubstr("write a number or null there"));
    }
  }
  write_file_atomically(scratch.path() / "config.json", "[1]");
  EXPECT_THROW(import_huggingface(scratch.path()), UserError);
  const auto sharded = broken(made("llama_sharded"), scratch, [](Json&) {});
  const auto index_path = sharded / "model.safetensors.index.json";
  auto index = Json::parse(read_file(index_path));
  index["weight_map"]["lm_head.weight"] = "../expected.safetensors";
  write_file_atomically(index_path, index.dump());
  EXPECT_THAT(error_of([&] { import_huggingface(sharded); }),
              HasSubstr("not the name of a file in this folder"));
  write_file_atomically(index_path, "{}");
  EXPECT_THAT(error_of([&] { import_huggingface(sharded); }), HasSubstr("weight_map is missing"));
}

TEST(HuggingfaceExport, NamesTheKeyThatNeitherArchitectureHas) {
  const test::TemporaryFolder out;
  const auto message = [&](const std::function<void(ModelConfig&)>& edit, ModelConfig config) {
    edit(config);
    const auto model = testing::make_model(config);
    return error_of([&] { export_huggingface(*model, "bytes", "", out.path() / "x"); });
  };
  EXPECT_THAT(message([](auto&) {}, testing::nemotron_variant()),
              HasSubstr("model.norm = \"layernorm\""));
  EXPECT_THAT(message([](auto& c) { c.rotary_fraction = 0.5; }, testing::llama_variant()),
              HasSubstr("model.rotary_fraction = 0.5"));
  EXPECT_THAT(message([](auto& c) { c.bias = true; }, testing::llama_variant()),
              HasSubstr("model.bias = true"));
  const auto mixture = [](ModelConfig& c) { c.moe.experts = 4; };
  EXPECT_THAT(message([&](auto& c) { mixture(c), c.moe.scale = 2; }, testing::llama_variant()),
              HasSubstr("mixtral not model.moe.scale = 2"));
  EXPECT_THAT(
      message([&](auto& c) { mixture(c), c.moe.shared_experts = 1; }, testing::llama_variant()),
      HasSubstr("mixtral not model.moe.shared_experts = 1"));
  EXPECT_THAT(
      message([&](auto& c) { mixture(c), c.moe.score = "sigmoid"; }, testing::llama_variant()),
      HasSubstr("mixtral not model.moe.score"));
  EXPECT_THAT(message([](auto& c) { c.kv_heads = 2; }, testing::gpt2_variant()),
              HasSubstr("model.kv_heads = 2"));
  EXPECT_FALSE(fs::exists(out.path() / "x"));
}

}  // namespace
}  // namespace dovetail::models::huggingface_test
