#include "dovetail/moe/draw.h"

#include <ATen/ops/empty.h>

#include "dovetail/base/rng.h"
#include "dovetail/base/threads.h"

namespace dovetail::moe {

namespace {

constexpr int64_t kDrawGrain = 256;

}  // namespace

at::Tensor uniform_draws(uint64_t key, int64_t first_token, int64_t tokens) {
  at::Tensor draws = at::empty({tokens}, at::kDouble);
  auto* draw = draws.mutable_data_ptr<double>();
  for (int64_t t = 0; t < tokens; ++t)
    draw[t] =
        random_uniform(key, RandomStream::kRoutingDraw, static_cast<uint64_t>(first_token + t));
  return draws;
}

at::Tensor normal_draws(uint64_t key, int64_t first_token, int64_t tokens, int64_t experts) {
  at::Tensor draws = at::empty({tokens, experts}, at::kDouble);
  auto* draw = draws.mutable_data_ptr<double>();
  parallel_pieces(tokens, kDrawGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * experts; i < end * experts; ++i) {
      const auto index = static_cast<uint64_t>(first_token * experts + i);
      draw[i] = random_normal(key, RandomStream::kRoutingNoise, index / 2)[index % 2];
    }
  });
  return draws;
}

at::Tensor hash_choices(uint64_t key, const at::Tensor& tokens, int64_t experts, int64_t k) {
  const at::Tensor ids = tokens.contiguous();
  const auto* id = ids.const_data_ptr<int64_t>();
  at::Tensor choices = at::empty({ids.numel(), k}, at::kInt);
  auto* choice = choices.mutable_data_ptr<int32_t>();
  for (int64_t t = 0; t < ids.numel(); ++t) {
    const uint64_t of_token = mix_seed(key, static_cast<uint64_t>(id[t]));
    for (int64_t j = 0; j < k; ++j)
      choice[t * k + j] = static_cast<int32_t>(
          permuted_index(of_token, static_cast<uint64_t>(j), static_cast<uint64_t>(experts)));
  }
  return choices;
}

}  // namespace dovetail::moe
