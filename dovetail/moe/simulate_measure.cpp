#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/comm/all_to_all.h"
#include "dovetail/comm/cost_model.h"
#include "dovetail/moe/simulate.h"

namespace dovetail::moe {
namespace {

struct Expert {
  at::Tensor up, down;
  at::Tensor operator()(const at::Tensor& x) const { return at::mm(at::mm(x, up), down); }
};

/// Runs forward in the order of `simulate`: dispatch 0, dispatch 1, combine 0, ...
void run_forward(const at::Tensor& x, const comm::Exchange& exchange, const Expert& expert,
                 int overlap) {
  const auto chunks = x.chunk(overlap);
  std::vector<comm::PendingRows> there, back;
  there.push_back(comm::start_all_to_all(chunks[0], exchange));
  for (int i = 0; i < overlap; ++i) {
    if (i + 1 < overlap)
      there.push_back(comm::start_all_to_all(chunks[static_cast<size_t>(i) + 1], exchange));
    const auto rows = there[static_cast<size_t>(i)].wait();
    back.push_back(comm::start_all_to_all(expert(rows), exchange.reversed()));
  }
  for (auto& rows : back) rows.wait();
}

}  // namespace

double measure_forward(const std::shared_ptr<comm::Group>& group, const LayerLoad& load,
                       int overlap, int repeats, at::Device device) {
  const int64_t rows = load.tokens * load.top_k;
  user_check(load.ranks == group->size() && load.experts == load.ranks &&
                 rows % (overlap * load.ranks) == 0,
             "simulate: what is measured has one expert a rank and rows in equal chunks: {} "
             "experts, {} rows, overlap {}",
             load.experts, rows, overlap);
  const at::NoGradGuard no_grad;
  const auto x = at::ones({rows, load.width}, device);
  const Expert expert{at::ones({load.width, load.hidden}, device),
                      at::ones({load.hidden, load.width}, device)};
  const comm::Exchange exchange(group, comm::even_splits(rows / overlap, group->size()));
  const auto forward = [&] {
    run_forward(x, exchange, expert, overlap);
    if (device.is_cuda()) synchronize_gpu();
  };
  forward();  // warm-up
  return comm::slowest_rank_seconds(*group, repeats, forward);
}

}  // namespace dovetail::moe
