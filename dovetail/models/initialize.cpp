#include <torch/types.h>

#include <cmath>
#include <string_view>

#include "dovetail/base/rng.h"
#include "dovetail/base/threads.h"
#include "dovetail/models/gpt.h"
#include "dovetail/models/normal_values.h"

namespace dovetail::models {
namespace {

// Even, so that each piece begins with the first normal number of a pair.
constexpr int64_t kGrain = 1 << 14;

}  // namespace

at::Tensor normal_values(at::IntArrayRef shape, double std, uint64_t key) {
  auto values = torch::empty(shape, torch::kFloat32);
  auto* data = values.data_ptr<float>();
  parallel_pieces(values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 2) {
      const auto pair = random_normal(key, RandomStream::kInitialize, static_cast<uint64_t>(i / 2));
      data[i] = static_cast<float>(std * pair[0]);
      if (i + 1 < end) data[i + 1] = static_cast<float>(std * pair[1]);
    }
  });
  return values;
}

void initialize(GPT& model, uint64_t seed, double noise) {
  const torch::NoGradGuard no_grad;
  const auto& config = model.config();
  const double residual_std = config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers));
  for (auto& item : model.named_parameters()) {
    const std::string_view name = item.key();
    auto& parameter = item.value();
    const auto slice = model.expert_slice(item.key(), parameter.sizes());
    const at::IntArrayRef whole = slice ? at::IntArrayRef(slice->whole) : parameter.sizes();
    const auto own = [&](const at::Tensor& values) {
      return slice ? slice->of(values).reshape(parameter.sizes()) : values;
    };
    if (name.ends_with(".bias")) {
      parameter.zero_();
    } else if (name.ends_with("norm.weight")) {
      parameter.fill_(1);
    } else {
      const bool into_residual =
          name.ends_with(".attention.out.weight") || name.ends_with(".down.weight");
      const double std = into_residual ? residual_std : config.init_std;
      const auto key = mix_seed(seed, name_key(item.key()));
      parameter.copy_(own(normal_values(whole, std, key)));
      if (noise > 0) parameter.add_(own(normal_values(whole, noise * std, ~key)));
    }
  }
}

}  // namespace dovetail::models
