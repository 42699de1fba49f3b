#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dovetail/base/gpu.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/median.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/cost_model.h"
#include "dovetail/comm/exchange.h"

namespace dovetail::comm {
namespace {

constexpr int64_t kFitted[] = {64, 4096, 65536, 1 << 20, 4 << 20};
constexpr int64_t kHeldOut[] = {1024, 16384, 262144, 2 << 20};

}  // namespace

double slowest_rank_seconds(Group& group, int repeats, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    group.barrier();
    const double start = now_seconds();
    work();
    double longest = 0;
    for (const auto& one : group.all_gather(at::full({1}, now_seconds() - start, at::kDouble)))
      longest = std::max(longest, one.item<double>());
    seconds.push_back(longest);
  }
  return median(std::move(seconds));
}

namespace {

/// Times work on a device, as slowest_rank_seconds does.
double seconds_on(at::Device device, Group& group, int repeats, const std::function<void()>& work) {
  return slowest_rank_seconds(group, repeats, [&] {
    work();
    if (device.is_cuda()) synchronize_gpu();
  });
}

std::vector<LinkSample> measure(Group& group, const auto& sizes, at::Device device) {
  std::vector<LinkSample> samples;
  for (const int64_t bytes : sizes) {
    const double others = group.size() - 1;
    const int repeats = bytes >= 1 << 20 ? 9 : 41;
    samples.push_back({others, others * static_cast<double>(bytes),
                       measure_all_to_all(group, bytes, repeats, device)});
  }
  return samples;
}

/// Copies into memory that exists: a training step gets the memory of the previous one. The first
/// touch of a page takes longer than its copy.
double measure_copy(Group& world, at::Device device) {
  const auto x = at::zeros({512, 8, 256}, device);
  const at::Tensor y = at::empty_like(x).view({8, 512, 256});
  return static_cast<double>(x.nbytes()) /
         seconds_on(device, world, 21, [&] { y.copy_(x.transpose(0, 1)); });
}

/// Share of an exchange that products of about equal length hide.
double measure_overlap_share(Group& world, at::Device device) {
  if (world.size() == 1) return 1;
  const auto x = at::zeros({world.size(), 1 << 20}, at::device(device).dtype(at::kByte));
  auto y = at::empty_like(x);
  const std::vector<int64_t> one(static_cast<size_t>(world.size()), 1);
  const auto a = at::ones({256, 256}, device);
  constexpr int kRepeats = 15;
  const auto seconds = [&](const std::function<void()>& work) {
    return seconds_on(device, world, kRepeats, work);
  };
  const double exchange = seconds([&] { world.all_to_all_async(y, x, one, one)->wait(); }),
               product = seconds([&] { at::mm(a, a); });
  const int products = std::max(1, static_cast<int>(std::lround(exchange / product)));
  const auto compute = [&] {
    for (int i = 0; i < products; ++i) at::mm(a, a);
  };
  const double alone = seconds(compute);
  const double together = seconds([&] {
    const auto work = world.all_to_all_async(y, x, one, one);
    compute();
    work->wait();
  });
  return std::clamp((exchange + alone - together) / std::min(exchange, alone), 0.0, 1.0);
}

double measure_product(Group& world, int64_t size, int repeats, at::Device device) {
  const auto a = at::ones({size, size}, device);
  return seconds_on(device, world, repeats, [&] { at::mm(a, a); });
}

/// Fits a collective that `run(bytes)` makes, in which each rank receives or sends `bytes` per
/// other rank.
Link fit_collective(Group& world, at::Device device, const std::function<void(int64_t)>& run) {
  std::vector<LinkSample> samples;
  const double others = world.size() - 1;
  for (const int64_t bytes : {int64_t{16} << 10, int64_t{256} << 10, int64_t{4} << 20}) {
    samples.push_back({others, others * static_cast<double>(bytes),
                       seconds_on(device, world, bytes < 1 << 20 ? 21 : 5, [&] { run(bytes); })});
  }
  return fit_link(samples);
}

}  // namespace

double measure_all_to_all(Group& group, int64_t bytes, int repeats, at::Device device) {
  const auto x = at::zeros({group.size(), bytes}, at::device(device).dtype(at::kByte));
  auto y = at::empty_like(x);
  const std::vector<int64_t> one(static_cast<size_t>(group.size()), 1);
  return seconds_on(device, group, repeats,
                    [&] { group.all_to_all_async(y, x, one, one)->wait(); });
}

Calibration calibrate(Group& world, int ranks_per_node, at::Device device) {
  Calibration result;
  auto& model = result.model;
  model.ranks_per_node = ranks_per_node;
  const auto nodes = split_by_node(world, ranks_per_node);
  if (ranks_per_node > 1) {
    result.fitted = measure(*nodes.inside, kFitted, device);
    result.held_out = measure(*nodes.inside, kHeldOut, device);
    model.inside = fit_link(result.fitted);
  }
  if (nodes.between->size() > 1) model.between = fit_link(measure(*nodes.between, kFitted, device));
  model.copy_bytes_per_s = measure_copy(world, device);
  constexpr int64_t kLarge = 768, kSmall = 16;
  model.call_s = measure_product(world, kSmall, 41, device);
  model.flops = 2.0 * kLarge * kLarge * kLarge / measure_product(world, kLarge, 9, device);
  // The other ranks wait for rank 0.
  model.flops_alone = 2.0 * kLarge * kLarge * kLarge /
                      seconds_on(device, world, 9, [&, a = at::ones({kLarge, kLarge}, device)] {
                        if (world.rank() == 0) at::mm(a, a);
                      });
  model.flops_alone = std::max(model.flops_alone, model.flops);
  model.overlap_share = measure_overlap_share(world, device);
  if (world.size() > 1) {
    model.gather = fit_collective(world, device, [&](int64_t bytes) {
      world.all_gather(at::zeros({bytes / 4}, at::device(device).dtype(at::kFloat)));
    });
    model.reduce = fit_collective(world, device, [&](int64_t bytes) {
      const at::Tensor sums =
          at::zeros({world.size(), bytes / 4}, at::device(device).dtype(at::kFloat));
      world.reduce_scatter_async(sums)->wait();
    });
  }
  model.source = fmt::format("measured on {} ranks of {}", world.size(),
                             device.is_cuda() ? "GPUs" : machine().cpu_name);
  return result;
}

}  // namespace dovetail::comm
