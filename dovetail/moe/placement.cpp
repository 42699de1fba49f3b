#include "dovetail/moe/placement.h"

#include <fmt/format.h>

#include "dovetail/base/error.h"

namespace dovetail::moe {

int Placement::holder_of(int64_t expert) const {
  int holder = static_cast<int>(expert * holders() / experts);
  while (first(holder + 1) <= expert) ++holder;
  return holder;
}

Placement make_placement(int64_t experts, int ranks, int cut, int64_t ffn_width, bool bias) {
  const int64_t least = ranks > experts ? (ranks + experts - 1) / experts : 1;
  const Placement out{
      .experts = experts, .ranks = ranks, .cut = cut == 0 ? static_cast<int>(least) : cut};
  if (ranks % out.cut != 0)
    throw UserError(
        fmt::format(
            "parallel.expert = {} ranks do not divide into groups of {} that hold {} experts",
            ranks, out.cut, experts),
        "parallel.expert_tensor must divide parallel.expert");
  if (out.holders() > experts)
    throw UserError(
        fmt::format("parallel.expert = {} with parallel.expert_tensor = {} are {} holders of "
                    "experts, but model.moe.experts = {}",
                    ranks, out.cut, out.holders(), experts),
        fmt::format("parallel.expert_tensor = {} or more cuts each expert over as many ranks",
                    least));
  user_check(ffn_width % out.cut == 0,
             "parallel.expert_tensor = {} does not divide model.moe.ffn_width = {}", out.cut,
             ffn_width);
  user_check(out.cut == 1 || !bias,
             "model.bias = true: experts that parallel.expert_tensor = {} cuts have no biases; "
             "leave one of them out",
             out.cut);
  return out;
}

}  // namespace dovetail::moe
