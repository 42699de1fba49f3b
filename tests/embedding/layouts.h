#pragma once

#include <algorithm>
#include <optional>
#include <ostream>
#include <vector>

#include "dovetail/embedding/ranks/distributed.h"
#include "tests/comm/ranks.h"
#include "tests/embedding/testing.h"

/// Training of tables that are distributed over ranks.
namespace dovetail::embedding::testing {

using dovetail::testing::normal;

/// Distribution of tables, and number of samples of each rank.
struct Layout {
  std::optional<Sharding> sharding;
  std::vector<int64_t> samples;
  bool packing = true;
  int64_t groups = 1, micro_batches = 1;
  bool weighted = false;
  Pooling pooling = Pooling::kSum;
  OptimizerKind optimizer = OptimizerKind::kAdam;
  RowDtype row_dtype = RowDtype::kFloat32;
  Transfer transfer = Transfer::kBags;
  comm::Payload payload = comm::Payload::kUnchanged;

  int ranks() const { return static_cast<int>(samples.size()); }
};

inline void PrintTo(const Layout& l, std::ostream* out) {
  *out << (l.sharding ? name(*l.sharding) : "auto") << " on " << l.ranks() << " ranks, packing "
       << l.packing << ", " << l.groups << " groups, " << l.micro_batches << " micro-batches, "
       << (l.weighted ? "weighted" : "not weighted")
       << (l.pooling == Pooling::kMean ? ", mean, " : ", sum, ") << name(l.transfer) << ", rows "
       << name(l.row_dtype) << ", sent " << comm::name(l.payload);
}

/// A shared table, one that dominates, one with fewer rows than ranks.
inline PackSpec spec_of(const Layout& layout) {
  return {.tables = {{"large", 90, 24, layout.pooling},
                     {"shared", 17, 16, layout.pooling},
                     {"few", 2, 18, layout.pooling},
                     {"other", 31, 16, layout.pooling}},
          .feature_table = {1, 0, 2, 1, 3},
          .optimizer = {.kind = layout.optimizer, .lr = 0.05, .eps = 1e-3, .weight_decay = 0.01},
          .seed = 3,
          .row_dtype = layout.row_dtype};
}

inline PlacementOptions options_of(const Layout& layout) {
  return {.ranks = layout.ranks(),
          .sharding = layout.sharding,
          .packing = layout.packing,
          .groups = layout.groups,
          .transfer = layout.transfer};
}

/// Results to compare: pooled rows of all samples, and the tables after some steps.
struct Trained {
  std::vector<at::Tensor> pooled, weights, states;
};

constexpr uint64_t kSteps = 3;

inline Jagged batch_of(const PackedTables& tables, const Layout& layout, uint64_t step) {
  int64_t samples = 0;
  for (const int64_t count : layout.samples) samples += count;
  return random_batch(tables, samples, step, layout.weighted);
}

inline at::Tensor gradient_of(int64_t samples, int64_t columns, uint64_t step) {
  return normal({samples, columns}, 10 + step);
}

inline Trained train_packed(const Layout& layout) {
  PackedTables tables(spec_of(layout));
  Trained trained;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    const Jagged batch = batch_of(tables, layout, step);
    trained.pooled.push_back(pool(tables, batch));
    update(tables, {{batch, gradient_of(batch.samples, tables.columns(), step)}});
  }
  for (int64_t t = 0; t < 4; ++t) {
    trained.weights.push_back(tables.stored(t));
    trained.states.push_back(tables.packed_state(t));
  }
  return trained;
}

/// Two micro-batches are in flight at a time, as in training. `prefetched`: the step is prepared
/// before it begins.
inline at::Tensor step_on_rank(DistributedTables& tables, const Jagged& batch,
                               const at::Tensor& gradient, int64_t parts, int64_t maximum_samples,
                               bool prefetched = false) {
  const int64_t size = (maximum_samples + parts - 1) / parts;
  std::vector<at::Tensor> pooled;
  TableStep step = tables.start(batch, size, parts);
  if (prefetched) tables.prefetch(step);
  tables.begin(step);
  tables.gather(step, 0);
  for (int64_t m = 0; m < parts; ++m) {
    pooled.push_back(tables.wait(step, m));
    if (m + 1 < parts) tables.gather(step, m + 1);
    const int64_t first = std::min(m * size, batch.samples);
    tables.add_gradient(step, m, gradient.narrow(0, first, std::min(size, batch.samples - first)));
  }
  tables.update(step);
  return at::cat(pooled).cpu();
}

/// Trains with tables in `memory`.
inline Trained train_distributed(const Layout& layout, SlotMemory memory = {}) {
  const PackSpec spec = spec_of(layout);
  const PackedTables shapes(spec);
  std::vector<std::vector<at::Tensor>> pooled(kSteps,
                                              std::vector<at::Tensor>(layout.samples.size()));
  Trained trained;
  expect_all_succeed(layout.ranks(), [&](const std::shared_ptr<comm::Group>& group) {
    DistributedTables tables(spec, place_tables(spec, options_of(layout)), group,
                             {layout.payload, layout.payload}, {}, {}, Changes::kUntracked, memory);
    const int64_t count = layout.samples[static_cast<size_t>(group->rank())];
    int64_t first = 0;
    for (int r = 0; r < group->rank(); ++r) first += layout.samples[static_cast<size_t>(r)];
    for (uint64_t step = 1; step <= kSteps; ++step) {
      const Jagged batch = batch_of(shapes, layout, step);
      const at::Tensor gradient = gradient_of(batch.samples, tables.columns(), step)
                                      .narrow(0, first, count)
                                      .to(memory.device);
      pooled[step - 1][static_cast<size_t>(group->rank())] =
          step_on_rank(tables, samples_of(batch, first, count), gradient, layout.micro_batches,
                       *std::ranges::max_element(layout.samples), /*prefetched=*/step % 2 == 0);
    }
    for (int64_t t = 0; t < 4; ++t) {
      const TableContents contents = tables.read(t);
      EXPECT_EQ(contents.weight.defined(), group->rank() == 0);
      if (group->rank() != 0) continue;
      trained.weights.push_back(contents.weight.clone());
      if (contents.state.defined()) trained.states.push_back(contents.state.clone());
    }
  });
  for (const std::vector<at::Tensor>& of_ranks : pooled)
    trained.pooled.push_back(at::cat(of_ranks));
  return trained;
}

}  // namespace dovetail::embedding::testing
