#include "dovetail/train/load_model.h"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/load_recommender.h"
#include "dovetail/train/router_bias.h"

namespace dovetail {
namespace {

constexpr std::string_view kModelPrefix = "model.";
constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 (RFC 4648): a SentencePiece model is binary, which a JSON string cannot hold.
std::string encode_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k)
      word = word << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) {
      out += i + k > bytes.size() ? '=' : kBase64Digits[word >> (18 - 6 * k) & 63];
    }
  }
  return out;
}

std::string decode_base64(std::string_view text) {
  std::string out;
  uint32_t word = 0;
  int bits = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const size_t digit = kBase64Digits.find(c);
    user_check(digit != std::string_view::npos, "the checkpoint's tokenizer is not valid base64");
    word = word << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      out += static_cast<char>(word >> bits & 255);
    }
  }
  return out;
}

Snapshot read_run_or_checkpoint(const std::filesystem::path& path,
                                std::filesystem::path& checkpoint) {
  namespace fs = std::filesystem;
  if (!fs::exists(path)) {
    throw UserError(fmt::format("{} does not exist", path.string()),
                    "give a run's folder (runs/<name>) or one of its checkpoints");
  }
  if (fs::exists(path / "manifest.json")) {
    checkpoint = path;
    return read_checkpoint(path);
  }
  if (fs::is_directory(path / "checkpoints")) {
    Snapshot snapshot = read_latest_checkpoint(path / "checkpoints");
    if (snapshot.step >= 0) {
      checkpoint = CheckpointFolder(path / "checkpoints", {}).path_of(snapshot.step);
      return snapshot;
    }
  }
  throw UserError(fmt::format("{} holds no checkpoint", path.string()),
                  "give a run's folder (runs/<name>) or one of its checkpoints. A run saves the "
                  "first one after "
                  "checkpoint.every_steps steps or when it ends");
}

void load_parameters(GPT& model, const Snapshot& snapshot,
                     const std::filesystem::path& checkpoint) {
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    const auto found = snapshot.tensors.find(std::string(kModelPrefix) + item.key());
    user_check(found != snapshot.tensors.end(),
               "{}: tensor {}{} is missing, which the stored config asks for", checkpoint.string(),
               kModelPrefix, item.key());
    user_check(found->second.sizes() == item.value().sizes(),
               "{}: tensor {} has shape {}, the stored config asks for {}", checkpoint.string(),
               found->first, fmt::join(found->second.sizes(), "x"),
               fmt::join(item.value().sizes(), "x"));
    item.value().copy_(found->second);
  }
  RouterBias(model).load(snapshot.tensors);
}

}  // namespace

nlohmann::json tokenizer_state(const Tokenizer& tokenizer) {
  return {{"kind", tokenizer.kind()}, {"content", encode_base64(tokenizer.serialized())}};
}

std::unique_ptr<Tokenizer> tokenizer_from_state(const nlohmann::json& state) {
  user_check(state.is_object() && state.contains("kind") && state.contains("content") &&
                 state["kind"].is_string() && state["content"].is_string(),
             "the checkpoint's tokenizer entry has no kind and content");
  return make_tokenizer(state["kind"],
                        decode_base64(state["content"].get_ref<const std::string&>()),
                        "the checkpoint's tokenizer");
}

StoredRun read_stored_run(const std::filesystem::path& path) {
  StoredRun stored;
  if (is_exported_recommender(path)) {
    stored.checkpoint = path;
    stored.snapshot = read_exported_recommender(path);
  } else {
    stored.snapshot = read_run_or_checkpoint(path, stored.checkpoint);
  }
  const std::string name = stored.checkpoint.string();
  const nlohmann::json& state = stored.snapshot.state;
  user_check(
      state.is_object() && state.contains("config") && state.contains("tokenizer"),
      "{}: its manifest holds no config and tokenizer; it is not a checkpoint of a training run",
      name);
  config_from_json([&](Section& s) { stored.config.describe(s); }, state["config"], name);
  moe::forget_unread_scope(stored.config.model.moe);
  return stored;
}

LoadedModel load_model(const std::filesystem::path& run_or_checkpoint) {
  return load_model(read_stored_run(run_or_checkpoint));
}

LoadedModel load_model(const StoredRun& stored) {
  if (stored.config.recommends())
    throw UserError(fmt::format("{} belongs to a recommender ({}), not to a GPT",
                                stored.checkpoint.string(), stored.config.recommender.model),
                    "`dovetail eval` measures it, `dovetail export` writes it for PyTorch");
  LoadedModel loaded{.model = nullptr,
                     .tokenizer = tokenizer_from_state(stored.snapshot.state["tokenizer"]),
                     .config = stored.config,
                     .step = stored.snapshot.step,
                     .checkpoint = stored.checkpoint};
  loaded.config.model = resolve_model_config(loaded.config.model, loaded.tokenizer->vocab_size());
  loaded.model = std::make_shared<GPT>(loaded.config.model);
  if (loaded.config.precision.recipe == "fp64") loaded.model->set_compute_dtype(at::kDouble);
  load_parameters(*loaded.model, stored.snapshot, loaded.checkpoint);
  loaded.model->eval();
  return loaded;
}

Snapshot initial_snapshot(GPT& model, const Tokenizer& tokenizer, const RunConfig& config) {
  Snapshot snapshot;
  for (const auto& item : model.named_parameters()) {
    snapshot.tensors[std::string(kModelPrefix) + item.key()] = item.value().detach().to(at::kFloat);
  }
  RunConfig stored = config;
  snapshot.state["config"] = config_to_json([&](Section& s) { stored.describe(s); });
  snapshot.state["tokenizer"] = tokenizer_state(tokenizer);
  return snapshot;
}

}  // namespace dovetail
