#include "dovetail/embedding/pack/lookup_cuda.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>

#include "dovetail/base/error.h"
#include "dovetail/embedding/pack/cuda_kernels.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::embedding {

namespace {

/// Copies `items` to the tables' memory: to a GPU through pinned memory. Nothing waits for the
/// copy.
template <class Item>
at::Tensor to_gpu(const std::vector<Item>& items, at::Device device) {
  static_assert(std::is_trivially_copyable_v<Item>);
  at::Tensor bytes = at::empty({static_cast<int64_t>(items.size() * sizeof(Item))},
                               at::TensorOptions(at::kByte).pinned_memory(!device.is_cpu()));
  if (!items.empty()) std::memcpy(bytes.mutable_data_ptr(), items.data(), bytes.nbytes());
  return bytes.to(device, /*non_blocking=*/true);
}

template <class Item>
Item* items_in(const at::Tensor& bytes) {
  return reinterpret_cast<Item*>(bytes.mutable_data_ptr());
}

}  // namespace

/// Layout of a pack in GPU memory, with the tensors that own the memory.
struct GpuLayout {
  explicit GpuLayout(const PackedTables& from) {
    const PackLayout here(from);
    tables = to_gpu(here.tables, from.device());
    features = to_gpu(here.features, from.device());
    pack = here.pack;
    pack.tables = items_in<CudaTable>(tables);
    pack.features = items_in<CudaFeature>(features);
    rows = here.rows;
    for (const CudaTable& table : here.tables) first_rows.push_back(table.first_row);
    if (from.device().is_cpu()) return;
    copied.emplace(from.device().type());
    copied->record(c10::impl::VirtualGuardImpl(from.device().type()).getStream(from.device()));
  }

  at::Tensor tables, features;
  CudaPack pack;
  int64_t rows;
  std::vector<int64_t> first_rows;   ///< CudaTable::first_row of each table
  std::optional<c10::Event> copied;  ///< end of the copy; unset on the CPU
};

namespace {

/// Returns the layout of tables on a GPU, for work on the current stream. The first call copies it
/// there.
const GpuLayout& layout_of(const PackedTables& tables) {
  std::shared_ptr<const GpuLayout>& layout = tables.gpu_layout();
  if (!layout) layout = std::make_shared<GpuLayout>(tables);
  if (layout->copied)
    layout->copied->block(
        c10::impl::VirtualGuardImpl(tables.device().type()).getStream(tables.device()));
  return *layout;
}

}  // namespace

PackLayout::PackLayout(const PackedTables& from) {
  pack.one_each = true;
  for (size_t t = 0; t < from.spec().tables.size(); ++t) {
    const TableSpec& table = from.spec().tables[t];
    const auto number = static_cast<int64_t>(t);
    const RowRounding rounding = from.rounding(number);
    tables.push_back({.rows = from.row_data(number),
                      .state = from.packed_state(number).mutable_data_ptr<float>(),
                      .first_row = rows,
                      .count = table.rows,
                      .dim = table.dim,
                      .row_bytes = row_bytes(from.spec().row_dtype, table.dim),
                      .state_width = state_per_row(from.spec().optimizer.kind, table.dim),
                      .rounding_first_row = rounding.first_row,
                      .rounding_row_step = rounding.row_step,
                      .rounding_first_column = rounding.first_column,
                      .row_of = rounding.row_of});
    rows += table.rows;
    pack.widest = std::max(pack.widest, table.dim);
    pack.one_each = pack.one_each && from.features_of(number).size() <= 1;
  }
  for (const FeatureLayout& feature : from.features()) {
    const TableSpec& table = from.spec().tables[static_cast<size_t>(feature.table)];
    features.push_back({.table = feature.table,
                        .column = feature.column,
                        .mean = table.pooling == Pooling::kMean});
  }
  pack.storage = from.spec().row_dtype == RowDtype::kFloat32 ? ops::Storage::kFloat32
                                                             : ops::Storage::kBFloat16;
  pack.tables = tables.data();
  pack.features = features.data();
  pack.num_tables = std::ssize(tables);
  pack.num_features = std::ssize(features);
}

std::vector<uint64_t> rounding_keys(const PackedTables& tables) {
  std::vector<uint64_t> keys;
  for (int64_t t = 0; t < std::ssize(tables.spec().tables); ++t)
    keys.push_back(tables.rounding(t).key);
  return keys;
}

CudaBatch cuda_batch(const Jagged& batch) {
  return {.values = batch.values.const_data_ptr<int64_t>(),
          .offsets = batch.offsets.const_data_ptr<int64_t>(),
          .weights = ops::data_or_null(batch.weights),
          .ids = batch.values.numel(),
          .samples = batch.samples};
}

ContentsCheck::ContentsCheck(const Jagged& batch, at::ArrayRef<int64_t> rows)
    : batch_(batch), rows_(rows), end_(batch.values.device().type()) {
  const at::Device device = batch.values.device();
  const c10::DeviceGuard guard(device);
  const c10::impl::VirtualGuardImpl gpu(device.type());
  c10::Event begin(device.type());
  begin.record(gpu.getStream(device));
  const c10::StreamGuard beside(gpu.getStreamFromGlobalPool(device));
  begin.block(beside.current_stream());
  limits_ = to_gpu(rows.vec(), device);
  bad_ = at::zeros({1}, batch.values.options().dtype(at::kInt));
  cuda_kernels().check({.batch = cuda_batch(batch),
                        .features = batch.features,
                        .rows = items_in<int64_t>(limits_),
                        .bad = bad_.mutable_data_ptr<int32_t>()});
  bad_on_host_ = at::empty({1}, at::TensorOptions(at::kInt).pinned_memory(true));
  bad_on_host_.copy_(bad_, /*non_blocking=*/true);
  end_.record(beside.current_stream());
}

void ContentsCheck::wait() {
  end_.synchronize();
  if (bad_on_host_.item<int32_t>() == 0) return;
  Jagged there = batch_;
  for (at::Tensor* tensor : {&there.values, &there.offsets, &there.weights})
    if (tensor->defined()) *tensor = tensor->cpu();
  check_jagged(there, rows_);
  DOVETAIL_CHECK(false, "a batch that is refused on the GPU alone");
}

void pool_on_gpu(const PackedTables& tables, const Jagged& batch, const at::Tensor& y) {
  if (batch.features * batch.samples == 0) return;
  const c10::DeviceGuard guard(tables.device());
  cuda_kernels().pool({.pack = layout_of(tables).pack,
                       .batch = cuda_batch(batch),
                       .y = y.mutable_data_ptr<float>(),
                       .columns = tables.columns()});
}

void move_rows(const PackedTables& tables, CudaMoveProblem problem) {
  if (problem.count == 0) return;
  if (!tables.device().is_cpu()) {
    const c10::DeviceGuard guard(tables.device());
    problem.pack = layout_of(tables).pack;
    return cuda_kernels().move(problem);
  }
  const PackLayout layout(tables);
  const auto through = [](char* slot, int64_t bytes, const char* in, bool zeros, char* out) {
    if (out != nullptr) std::copy_n(slot, bytes, out);
    if (in != nullptr) std::copy_n(in, bytes, slot);
    if (zeros) std::fill_n(slot, bytes, char{0});
  };
  for (const CudaRowMove& move : std::span(problem.moves, static_cast<size_t>(problem.count))) {
    const CudaTable& table = layout.tables[move.table];
    const int64_t state_at = padded(table.row_bytes);
    const bool zeros = move.in == CudaRowMove::kZeros, comes = move.in >= 0, leaves = move.out >= 0;
    through(table.rows + move.slot * table.row_bytes, table.row_bytes,
            comes ? problem.in + move.in : nullptr, zeros,
            leaves ? problem.out + move.out : nullptr);
    through(reinterpret_cast<char*>(table.state + move.slot * table.state_width),
            table.state_width * static_cast<int64_t>(sizeof(float)),
            comes ? problem.in + move.in + state_at : nullptr, zeros,
            leaves ? problem.out + move.out + state_at : nullptr);
    if (comes && problem.row_of != nullptr) problem.row_of[table.first_row + move.slot] = move.row;
  }
}

namespace {

/// Occurrences of an update.
struct Occurrences {
  int64_t bags, count;
  /// One number of 4 bytes and one CudaOccurrence for each. Kernels list them there, unless the
  /// micro-batches have no samples.
  at::Tensor keys, occurrences;
};

at::Tensor words(int64_t count, at::Device device) {
  return at::empty({count}, at::TensorOptions(device).dtype(at::kInt));
}

void check_size(int64_t bags, int64_t count, int64_t rows) {
  user_check(bags < INT32_MAX && count < INT32_MAX && rows <= int64_t{1} << 32,
             "embedding: an update on a GPU may have 2^31 - 2 bags and ids of 2^32 rows, but has "
             "{} and {} of {}",
             bags, count, rows);
}

void queue_update(const PackedTables& tables, const CudaPack& pack, int64_t rows,
                  const std::vector<CudaGradient>& parts, const Occurrences& listed,
                  const CudaKernels& kernels) {
  const auto [bags, count, keys, occurrences] = listed;
  const at::Device device = tables.device();
  const int row_bits =
      std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(rows - 1))));
  const at::Tensor on_gpu = to_gpu(parts, device);
  const bool rounds = pack.storage == ops::Storage::kBFloat16;
  const at::Tensor keys_of_rounding = rounds ? to_gpu(rounding_keys(tables), device) : at::Tensor();
  const at::Tensor bag_begins = words(pack.one_each ? 0 : bags + 1, device),
                   sorted_keys = words(count, device),
                   sorted_occurrences = words(2 * count, device), row_begins = words(count, device),
                   long_rows = words(count, device), counts = words(2, device).zero_();
  const size_t scratch_bytes = kernels.update_scratch(bags, count, row_bits);
  const at::Tensor scratch =
      at::empty({static_cast<int64_t>(scratch_bytes)}, at::TensorOptions(device).dtype(at::kByte));
  static_assert(sizeof(CudaOccurrence) == 2 * sizeof(uint32_t));
  kernels.update({.pack = pack,
                  .scalars = update_scalars(tables.spec().optimizer, tables.steps() + 1),
                  .rounding_keys = rounds ? items_in<uint64_t>(keys_of_rounding) : nullptr,
                  .num_parts = std::ssize(parts),
                  .parts = parts.data(),
                  .parts_on_gpu = items_in<CudaGradient>(on_gpu),
                  .bags = bags,
                  .count = count,
                  .row_bits = row_bits,
                  .bag_begins = pack.one_each ? nullptr : items_in<uint32_t>(bag_begins),
                  .keys = items_in<uint32_t>(keys),
                  .sorted_keys = items_in<uint32_t>(sorted_keys),
                  .occurrences = items_in<CudaOccurrence>(occurrences),
                  .sorted_occurrences = items_in<CudaOccurrence>(sorted_occurrences),
                  .row_begins = items_in<uint32_t>(row_begins),
                  .long_rows = items_in<uint32_t>(long_rows),
                  .counts = items_in<uint32_t>(counts),
                  .scratch = scratch.mutable_data_ptr(),
                  .scratch_bytes = scratch_bytes});
}

}  // namespace

void update_on_gpu(const PackedTables& tables, const std::vector<PooledGradient>& micro_batches,
                   const CudaKernels& kernels) {
  const c10::DeviceGuard guard(tables.device());
  const GpuLayout& layout = layout_of(tables);
  std::vector<at::Tensor> gradients;
  std::vector<CudaGradient> parts;
  int64_t bags = 0, count = 0;
  for (const PooledGradient& part : micro_batches) {
    gradients.push_back(part.gradient.stride(1) == 1 ? part.gradient : part.gradient.contiguous());
    parts.push_back({.batch = cuda_batch(part.batch),
                     .gradient = gradients.back().const_data_ptr<float>(),
                     .gradient_stride = gradients.back().stride(0),
                     .first_bag = bags,
                     .first_id = count});
    bags += part.batch.features * part.batch.samples;
    count += part.batch.values.numel();
  }
  if (count == 0) return;
  check_size(bags, count, layout.rows);
  queue_update(tables, layout.pack, layout.rows, parts,
               {.bags = bags,
                .count = count,
                .keys = words(count, tables.device()),
                .occurrences = words(2 * count, tables.device())},
               kernels);
}

void update_single_rows_on_gpu(const PackedTables& tables, const std::vector<RowGradients>& parts,
                               const CudaKernels& kernels) {
  if (parts.empty()) return;
  const c10::DeviceGuard guard(tables.device());
  const GpuLayout& layout = layout_of(tables);
  const std::vector<TableSpec>& specs = tables.spec().tables;
  const auto num_tables = std::ssize(specs);
  int64_t unit = 0;  // floats; the place of a gradient is a multiple of it
  for (const TableSpec& table : specs) unit = std::gcd(unit, table.dim);
  std::vector<CudaFeature> features;  // the feature of a bag is its number modulo the tables
  std::vector<at::Tensor> keys, bags, gradients;
  int64_t count = 0, floats = 0;
  for (int64_t t = 0; t < num_tables; ++t) {
    features.push_back({.table = t, .column = 0, .mean = false});
    const auto table = static_cast<size_t>(t);
    int64_t rows = 0;
    for (const RowGradients& part : parts) {
      rows += part.rows[table].numel();
      keys.push_back(part.rows[table] + layout.first_rows[table]);
      gradients.push_back(part.gradient[table].reshape({-1}));
    }
    const int64_t step = specs[table].dim / unit * num_tables;
    bags.push_back(
        at::arange(rows, keys.back().options()).mul_(step).add_(floats / unit * num_tables + t));
    count += rows;
    floats += rows * specs[table].dim;
  }
  if (count == 0) return;
  const int64_t all_bags = floats / unit * num_tables;
  check_size(all_bags, count, layout.rows);
  const at::Tensor numbers = at::cat(keys).to(at::kInt), all_gradients = at::cat(gradients),
                   occurrences = at::empty({count, 2}, numbers.options());
  occurrences.select(1, 0).copy_(at::cat(bags));
  occurrences.select(1, 1).fill_(std::bit_cast<int32_t>(1.0f));
  const at::Tensor features_there = to_gpu(features, tables.device());
  CudaPack pack = layout.pack;
  pack.features = items_in<CudaFeature>(features_there);
  pack.num_features = num_tables;
  pack.one_each = true;
  const CudaBatch listed = {};
  queue_update(tables, pack, layout.rows,
               {{.batch = listed,
                 .gradient = all_gradients.const_data_ptr<float>(),
                 .gradient_stride = unit,
                 .first_bag = 0,
                 .first_id = 0}},
               {.bags = all_bags, .count = count, .keys = numbers, .occurrences = occurrences},
               kernels);
}

}  // namespace dovetail::embedding
