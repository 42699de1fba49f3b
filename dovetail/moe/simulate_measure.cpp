#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/all_to_all.h"
#include "dovetail/moe/simulate.h"

namespace dovetail::moe {
namespace {

struct Expert {
  at::Tensor up, down;
  at::Tensor operator()(const at::Tensor& x) const { return at::mm(at::mm(x, up), down); }
};

/// In the order of `simulate`: dispatch 0, dispatch 1, combine 0, ...
void run_forward(const at::Tensor& x, const Exchange& exchange, const Expert& expert, int overlap) {
  const auto chunks = x.chunk(overlap);
  std::vector<PendingRows> there, back;
  there.push_back(start_all_to_all(chunks[0], exchange));
  for (int i = 0; i < overlap; ++i) {
    if (i + 1 < overlap) there.push_back(start_all_to_all(chunks[static_cast<size_t>(i) + 1], exchange));
    const auto rows = there[static_cast<size_t>(i)].wait();
    back.push_back(start_all_to_all(expert(rows), exchange.reversed()));
  }
  for (auto& rows : back) rows.wait();
}

}  // namespace

double measure_forward(const std::shared_ptr<Group>& group, const LayerLoad& load, int overlap, int repeats) {
  const int64_t rows = load.tokens * load.top_k;
  user_check(
      load.ranks == group->size() && load.experts == load.ranks && rows % (overlap * load.ranks) == 0,
      "simulate: what is measured has one expert a rank and rows in equal chunks: {} experts, {} rows, overlap {}",
      load.experts, rows, overlap);
  const at::NoGradGuard no_grad;
  const auto x = at::ones({rows, load.width});
  const Expert expert{at::ones({load.width, load.hidden}), at::ones({load.hidden, load.width})};
  const Exchange exchange(group, even_splits(rows / overlap, group->size()));
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    group->barrier();
    const double start = now_seconds();
    run_forward(x, exchange, expert, overlap);
    double longest = 0;
    for (const auto& one : group->all_gather(at::full({1}, now_seconds() - start, at::kDouble)))
      longest = std::max(longest, one.item<double>());
    if (i > 0) seconds.push_back(longest);  // the first one warms up
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

}  // namespace dovetail::moe
