#include "dovetail/models/generate.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"

namespace dovetail::models {
namespace {

void check_options(const GenerateOptions& o) {
  user_check(o.max_tokens >= 0, "generate: max_tokens = {} must not be negative", o.max_tokens);
  user_check(o.temperature >= 0 && std::isfinite(o.temperature),
             "generate: temperature = {} must be 0 or more", o.temperature);
  user_check(o.top_k >= 0, "generate: top_k = {} must not be negative", o.top_k);
  user_check(o.top_p > 0 && o.top_p <= 1, "generate: top_p = {} must be above 0 and at most 1",
             o.top_p);
}

void check_prompt(const std::vector<int32_t>& prompt, int64_t vocab_size) {
  user_check(!prompt.empty(),
             "generate: the prompt has no token; begin with the end-of-document token");
  for (const auto id : prompt) {
    user_check(id >= 0 && id < vocab_size,
               "generate: the prompt's token {} is not one of the model's {}", id, vocab_size);
  }
}

struct Candidate {
  int32_t id;
  double probability;  // not normalised
};

/// Returns the tokens that top_k and top_p leave, most likely first.
std::vector<Candidate> candidates(const float* logits, int64_t vocab,
                                  const GenerateOptions& options) {
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  const auto keep = options.top_k > 0 ? std::min(options.top_k, vocab) : vocab;
  std::partial_sort(order.begin(), order.begin() + keep, order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  std::vector<Candidate> kept;
  double total = 0;
  for (int64_t i = 0; i < keep; ++i) {
    const auto id = order[static_cast<size_t>(i)];
    kept.push_back(
        {id, std::exp((static_cast<double>(logits[id]) - logits[order[0]]) / options.temperature)});
    total += kept.back().probability;
  }
  double cumulated = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    cumulated += kept[i].probability;
    if (cumulated >= options.top_p * total) {
      kept.resize(i + 1);
      break;
    }
  }
  return kept;
}

/// Feeds tokens to the model. When the context is full, starts over with its newer half.
class Reader {
 public:
  Reader(GPT& model, std::vector<int32_t> history) : model_(model), history_(std::move(history)) {}

  /// Returns the logits (V) after the whole history, float32 on the CPU.
  at::Tensor next_logits() {
    const auto context = model_.config().context;
    const auto size = static_cast<int64_t>(history_.size());
    auto begin = begin_ + cache_.length;
    if (size - begin_ > context) {
      // The first prompt fills the context. Later, only the newer half stays, so that many tokens
      // pass before the next restart.
      begin_ = begin = size - (cache_.length == 0 ? context : context - context / 2);
      cache_ = {};
    }
    const auto tokens =
        at::tensor(at::ArrayRef<int32_t>(history_).slice(static_cast<size_t>(begin)), at::kLong);
    const auto features = model_.features(tokens.unsqueeze(0), &cache_);
    return model_.head_logits(features.select(1, -1)).view({-1}).to(at::kCPU, at::kFloat);
  }

  void append(int32_t token) { history_.push_back(token); }

 private:
  GPT& model_;
  std::vector<int32_t> history_;
  int64_t begin_ = 0;  // first token of the history that is cached
  KvCache cache_;
};

}  // namespace

int32_t sample_token(const at::Tensor& logits, const GenerateOptions& options, uint64_t index) {
  DOVETAIL_CHECK(logits.dim() == 1 && logits.scalar_type() == at::kFloat && logits.is_cpu() &&
                 logits.is_contiguous());
  const auto* values = logits.const_data_ptr<float>();
  const auto vocab =
      options.vocab_size > 0 ? std::min(options.vocab_size, logits.numel()) : logits.numel();
  user_check(std::all_of(values, values + vocab, [](float x) { return std::isfinite(x); }),
             "generate: the logits are not finite; the model's weights hold NaN or infinity");
  if (options.temperature == 0)
    return static_cast<int32_t>(std::max_element(values, values + vocab) - values);
  const auto kept = candidates(values, vocab, options);
  double total = 0;
  for (const auto& candidate : kept) total += candidate.probability;
  double point = random_uniform(options.seed, RandomStream::kSample, index) * total;
  for (const auto& candidate : kept) {
    point -= candidate.probability;
    if (point < 0) return candidate.id;
  }
  return kept.front().id;
}

std::vector<int32_t> generate(GPT& model, const std::vector<int32_t>& prompt,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token) {
  check_options(options);
  check_prompt(prompt, model.config().vocab_size);
  const torch::NoGradGuard no_grad;
  Reader reader(model, prompt);
  std::vector<int32_t> generated;
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    const auto token = sample_token(reader.next_logits(), options, static_cast<uint64_t>(i));
    generated.push_back(token);
    if (on_token && !on_token(token)) break;
    if (token == options.stop_token) break;
    reader.append(token);
  }
  return generated;
}

}  // namespace dovetail::models
