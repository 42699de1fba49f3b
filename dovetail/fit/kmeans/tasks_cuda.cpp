#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/fit/kmeans/cuda_kernels.h"
#include "dovetail/fit/kmeans/kmeans.h"
#include "dovetail/jobs/task.h"

/// Tasks of k-means on a GPU. They have the parameters, data and partials of the CPU's tasks
/// (tasks.cpp), with the same bits. Partials are on the CPU: each call reads the GPU once.
namespace dovetail::fit {
namespace {

static_assert(kCudaShardRows == kKMeansGrain && kCudaShardRows == kKMeansBatchGrain);

/// Maximum bytes of sums that wait to be added.
constexpr int64_t kSumsBytes = int64_t{256} << 20;

struct GpuRows {
  explicit GpuRows(const jobs::Shards& shards) : tensors(jobs::rows_of(shards)) {
    DOVETAIL_CHECK(shards.grain == kCudaShardRows || shards.count() == 1, "shards of {} rows",
                   shards.grain);
  }
  const at::Tensor& x() const { return tensors[KMeansData::kX]; }
  float* norms() const { return tensors[KMeansData::kNorms].mutable_data_ptr<float>(); }
  int32_t* labels() const { return tensors[KMeansData::kLabels].mutable_data_ptr<int32_t>(); }
  double* squares() const { return tensors[KMeansData::kSquares].mutable_data_ptr<double>(); }
  bool weighted() const { return tensors.size() > KMeansData::kWeights; }
  /// Returns the weights; null if the rows have none.
  const double* weights() const {
    return weighted() ? tensors[KMeansData::kWeights].const_data_ptr<double>() : nullptr;
  }
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type) const {
    return at::empty(sizes, x().options().dtype(type));
  }

  std::vector<at::Tensor> tensors;
};

/// Copies a tensor to the CPU, through pinned memory. Waits for the GPU.
at::Tensor read(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.clone();
  at::Tensor host =
      at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  return host.copy_(tensor);
}

using Blocks = std::vector<jobs::BlockSum>;

/// Returns the maximum number of shards whose sums (width) float64 are computed before they are
/// added.
int64_t most_shards(int64_t width) {
  return static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, kSumsBytes / 8 / width))));
}

/// Adds sums of shards along the tree, for blocks of at most `most` shards. The function `compute`
/// gets (first, count, sums). It sets `sums` (count, width) to the sums of `count` shards from
/// `first` on. Copies them to `of_shards` (shards, width), if defined. The partials of the result
/// hold one tensor (width) float64.
template <class Compute>
Blocks add_on_gpu(const jobs::Shards& shards, int64_t place, int64_t width, int64_t most,
                  const Compute& compute, const at::Tensor& of_shards = {}) {
  std::vector<at::Tensor> rows;
  Blocks blocks;
  for (int64_t first = 0, next = 0; first < shards.count(); first = next) {
    next = std::min(shards.count(), (place + first) / most * most + most - place);
    const int64_t count = next - first;
    const at::Tensor sums =
        at::empty({count, width}, at::TensorOptions(shards.location).dtype(at::kDouble));
    auto* data = sums.mutable_data_ptr<double>();
    compute(first, count, data);
    if (of_shards.defined()) of_shards.narrow(0, first, count).copy_(sums);
    cuda_kernels().add_tree(data, place + first, count, width);
    for (const jobs::Block& block : jobs::blocks_of(place + first, count, most)) {
      rows.push_back(sums[block.first - place - first]);
      blocks.push_back({.first = block.first, .count = block.count});
    }
  }
  const at::Tensor host = read(at::stack(rows));
  for (size_t i = 0; i < blocks.size(); ++i)
    blocks[i].partial.tensors = {host[static_cast<int64_t>(i)]};
  return blocks;
}

/// Runs the kernel of squared distances on shards `first` to first + count - 1 of the problem.
void squares(CudaSquares problem, int64_t first, int64_t count, double* sums) {
  const int64_t begin = first * kCudaShardRows;
  problem.rows = std::min(problem.rows - begin, count * kCudaShardRows);
  problem.x += begin * problem.dim;
  if (problem.label != nullptr) problem.label += begin;
  if (problem.norm != nullptr) problem.norm += begin;
  if (problem.squares != nullptr) problem.squares += begin;
  if (problem.weight != nullptr) problem.weight += begin;
  problem.sums = sums;
  cuda_kernels().squares(problem);
}

/// Returns the problem without labels, norms and squares.
CudaSquares problem_of(CudaSquares::Use use, const GpuRows& rows, const at::Tensor& points) {
  return {.use = use,
          .x = rows.x().const_data_ptr<float>(),
          .rows = rows.x().size(0),
          .dim = rows.x().size(1),
          .points = points.defined() ? points.const_data_ptr<double>() : nullptr,
          .count = points.defined() ? points.size(0) : 0,
          .label = nullptr,
          .norm = nullptr,
          .squares = nullptr,
          .weight = rows.weights(),
          .sums = nullptr};
}

/// Sets the weights of the partials, for blocks of at most `most` shards. A weight is a number
/// of rows, or the sum of their weights.
Blocks weighed(Blocks blocks, const GpuRows& rows, const jobs::Shards& shards, int64_t place,
               int64_t most) {
  Blocks weights;
  if (rows.weighted()) {
    const CudaSquares problem = problem_of(CudaSquares::Use::kWeights, rows, {});
    weights = add_on_gpu(shards, place, 1, most, [&](int64_t first, int64_t count, double* sums) {
      squares(problem, first, count, sums);
    });
  }
  for (size_t i = 0; i < blocks.size(); ++i)
    blocks[i].partial.weight =
        rows.weighted()
            ? weights[i].partial.tensors[0].item<double>()
            : static_cast<double>(shards.part(blocks[i].first - place, blocks[i].count).size);
  return blocks;
}

/// Adds the sums of a problem, one per shard. The partials hold a tensor ().
Blocks sum_of(const CudaSquares& problem, const GpuRows& rows, const jobs::Shards& shards,
              int64_t place, int64_t most) {
  Blocks blocks = add_on_gpu(
      shards, place, 1, most,
      [&](int64_t first, int64_t count, double* sums) { squares(problem, first, count, sums); });
  for (jobs::BlockSum& block : blocks)
    block.partial.tensors[0] = block.partial.tensors[0].squeeze(0);
  return weighed(std::move(blocks), rows, shards, place, most);
}

Blocks norms_on_gpu(const jobs::Parameters& parameters, const jobs::Shards& shards, int64_t place) {
  const GpuRows rows(shards);
  const at::Tensor point = parameters[0].to(at::kDouble).unsqueeze(0);
  CudaSquares problem = problem_of(CudaSquares::Use::kNorms, rows, point);
  problem.norm = rows.norms();
  return sum_of(problem, rows, shards, place, most_shards(1));
}

/// Number of float64 of a shard in assign_on_gpu: sums, counts and changed labels.
int64_t assign_width(const at::Tensor& centres) { return centres.numel() + centres.size(0) + 1; }

Blocks assign_on_gpu(const jobs::Parameters& parameters, const jobs::Shards& shards,
                     int64_t place) {
  const GpuRows rows(shards);
  const at::Tensor &centres = parameters[0], &shift = parameters[1];
  const int64_t num = centres.size(0), dim = centres.size(1);
  const int64_t stride = padded_centres(num), depth = padded_dim(dim);
  const at::Tensor fresh = rows.empty({shards.size}, at::kInt),
                   packed = rows.empty({depth, stride}, at::kFloat),
                   factors = rows.empty({3, stride}, at::kFloat),
                   doubtful = rows.empty({shards.size + 1}, at::kInt),
                   limit = rows.empty({shards.size}, at::kFloat);
  auto* factor = factors.mutable_data_ptr<float>();
  auto* list = reinterpret_cast<uint32_t*>(doubtful.mutable_data_ptr<int32_t>());
  const CudaAssign problem{.x = rows.x().const_data_ptr<float>(),
                           .rows = shards.size,
                           .dim = dim,
                           .norm = rows.norms(),
                           .shift = shift.const_data_ptr<float>(),
                           .centres = centres.const_data_ptr<double>(),
                           .num_centres = num,
                           .label = rows.labels(),
                           .weight = rows.weights(),
                           .fresh = fresh.mutable_data_ptr<int32_t>(),
                           .packed = packed.mutable_data_ptr<float>(),
                           .slope = factor,
                           .base = factor + stride,
                           .length = factor + 2 * stride,
                           .doubtful = list + 1,
                           .limit = limit.mutable_data_ptr<float>(),
                           .num_doubtful = list};
  cuda_kernels().nearest(problem);
  const int64_t width = assign_width(centres);
  Blocks blocks = add_on_gpu(shards, place, width, most_shards(width),
                             [&](int64_t first, int64_t count, double* sums) {
                               cuda_kernels().sums(problem, first, count, sums);
                             });
  for (jobs::BlockSum& block : blocks) {
    const at::Tensor all = block.partial.tensors[0];
    const at::Tensor counts = all.narrow(0, num * dim, num);
    block.partial.tensors = {all.narrow(0, 0, num * dim).view({num, dim}),
                             rows.weighted() ? counts : counts.to(at::kLong),
                             all[num * dim + num].to(at::kLong)};
  }
  return weighed(std::move(blocks), rows, shards, place, most_shards(width));
}

Blocks distances_to(const at::Tensor& centres, const jobs::Shards& shards, int64_t place,
                    int64_t most) {
  const GpuRows rows(shards);
  CudaSquares problem = problem_of(CudaSquares::Use::kLabels, rows, centres);
  problem.label = rows.labels();
  problem.squares = rows.squares();
  return sum_of(problem, rows, shards, place, most);
}

Blocks distances_on_gpu(const jobs::Parameters& parameters, const jobs::Shards& shards,
                        int64_t place) {
  return distances_to(parameters[0], shards, place, most_shards(1));
}

Blocks batch_on_gpu(const jobs::Parameters& parameters, const jobs::Shards& shards, int64_t place) {
  const at::Tensor &centres = parameters[0], &shift = parameters[1];
  const at::Tensor index = jobs::rows_of(shards, 0);
  const std::vector<at::Tensor> whole = jobs::whole_tensors(shards);
  const at::Tensor x = whole[0].index_select(0, index);
  std::vector<at::Tensor> tensors = {x, at::empty({shards.size}, x.options()),
                                     at::zeros({shards.size}, x.options().dtype(at::kInt)),
                                     at::empty({shards.size}, x.options().dtype(at::kDouble))};
  if (whole.size() > 1) tensors.push_back(whole[1].index_select(0, index));
  const jobs::ResidentData batch(std::move(tensors));
  const jobs::Shards all = batch.shards(shards.grain);
  norms_on_gpu({shift}, all, place);
  Blocks blocks = assign_on_gpu(parameters, all, place);
  const Blocks inertia = distances_to(centres, all, place, most_shards(assign_width(centres)));
  for (size_t i = 0; i < blocks.size(); ++i)
    blocks[i].partial.tensors[2] = inertia.at(i).partial.tensors[0];
  return blocks;
}

Blocks include_on_gpu(const jobs::Parameters& parameters, const jobs::Shards& shards,
                      int64_t place) {
  const GpuRows rows(shards);
  CudaSquares problem = problem_of(CudaSquares::Use::kInclude, rows, parameters[0]);
  problem.squares = rows.squares();
  const int64_t most = most_shards(1);
  const at::Tensor sums_of_shards = rows.empty({shards.count(), 1}, at::kDouble);
  Blocks blocks = add_on_gpu(
      shards, place, 1, most,
      [&](int64_t first, int64_t count, double* sums) { squares(problem, first, count, sums); },
      sums_of_shards);
  const at::Tensor of_shards = read(sums_of_shards);
  for (jobs::BlockSum& block : blocks)
    block.partial.of_shards = of_shards.narrow(0, block.first - place, block.count);
  return weighed(std::move(blocks), rows, shards, place, most);
}

const jobs::BlockTaskRegistration kNormsOnGpu("kmeans.norms", at::kCUDA, norms_on_gpu,
                                              {KMeansData::kNorms});
const jobs::BlockTaskRegistration kAssignOnGpu("kmeans.assign", at::kCUDA, assign_on_gpu,
                                               {KMeansData::kLabels});
const jobs::BlockTaskRegistration kBatchOnGpu("kmeans.batch", at::kCUDA, batch_on_gpu);
const jobs::BlockTaskRegistration kDistancesOnGpu("kmeans.distances", at::kCUDA, distances_on_gpu,
                                                  {KMeansData::kSquares});
const jobs::BlockTaskRegistration kIncludeOnGpu("kmeans.include", at::kCUDA, include_on_gpu,
                                                {KMeansData::kSquares});

}  // namespace
}  // namespace dovetail::fit
