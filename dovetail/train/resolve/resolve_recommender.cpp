#include "dovetail/train/resolve/resolve_recommender.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/models/recommender.h"
#include "dovetail/train/embedding_tables/lookups.h"
#include "dovetail/train/embedding_tables/optimizers.h"
#include "dovetail/train/embedding_tables/placement.h"

namespace dovetail::train {
namespace {

constexpr int64_t kFloat = sizeof(float);
/// Resident memory in addition to tensors and rows, measured with an empty model. It holds pages of
/// libraries, stacks, and the malloc arena of each thread that decodes rows.
constexpr int64_t kBesideRows = int64_t{22} << 20;

struct TotalSize {
  int64_t elements = 0, row_bytes = 0, state = 0;
  int64_t columns = 0;  ///< width of the pooled rows of a sample
};

TotalSize size_of(const embedding::PackSpec& pack) {
  TotalSize sizes;
  for (int64_t t = 0; t < std::ssize(pack.tables); ++t) {
    const embedding::TableSpec& table = pack.tables[static_cast<size_t>(t)];
    const int64_t row_bytes = embedding::row_bytes(pack.row_dtype, table.dim),
                  state = embedding::state_per_row(pack, t);
    const int64_t fitting =
        table.max_bytes == 0 ? table.rows : table.max_bytes / (row_bytes + kFloat * state);
    const int64_t rows = std::min(table.rows, fitting);
    sizes.elements += rows * table.dim;
    sizes.row_bytes += rows * row_bytes;
    sizes.state += rows * state;
  }
  for (const int64_t table : pack.feature_table)
    sizes.columns += pack.tables[static_cast<size_t>(table)].dim;
  return sizes;
}

/// Sizes of the dense part.
struct DenseSize {
  int64_t parameters = 0, weight_bytes = 0;
  int64_t master_bytes = 0;  ///< float32 copies of bfloat16 weights
  double flops = 0;          ///< for one sample
};

DenseSize dense_size(const RunConfig& config, at::ScalarType compute) {
  const auto model =
      models::make_recommender(config.recommender, recommender_inputs(config), c10::kMeta);
  model->set_compute_dtype(compute);
  DenseSize size = {.flops = models::flops_per_sample(*model)};
  for (const at::Tensor& parameter : model->parameters()) {
    size.parameters += parameter.numel();
    size.weight_bytes += static_cast<int64_t>(parameter.nbytes());
    if (parameter.scalar_type() != at::kFloat) size.master_bytes += kFloat * parameter.numel();
  }
  return size;
}

/// Returns the fraction of a rank's rows and state that is in memory.
double share_in_memory(const ResolvedRun& run, int64_t bytes) {
  const int64_t asked = run.config.embedding.memory_bytes;
  if (asked == 0) return 1;
  const double most = asked == EmbeddingSection::kAuto
                          ? static_cast<double>(run.available_bytes) / (2.0 * run.local_ranks)
                          : static_cast<double>(asked);
  return std::min(1.0, most / static_cast<double>(std::max<int64_t>(1, bytes)));
}

/// Returns the bytes of cached decoded rows and of batches read ahead. Decoded rows take about as
/// many bytes as their text. A row of a batch has an id and an offset for each sparse feature,
/// numbers and labels. Files that do not exist yet count 0.
int64_t bytes_of_rows(const RunConfig& config) {
  constexpr int64_t kBatchesAhead = 4, kId = sizeof(int64_t);
  int64_t decoded = 0;
  for (const std::string& file : config.rows.files) {
    std::error_code absent;
    const auto bytes = std::filesystem::file_size(file, absent);
    if (!absent) decoded += static_cast<int64_t>(bytes);
  }
  const int64_t row =
      2 * kId * std::ssize(config.rows.sparse) + kFloat * (config.rows.num_dense() + 1);
  return std::min(config.rows.cache_bytes, decoded) + kBatchesAhead * config.train.batch * row;
}

}  // namespace

void check_recommender(const ResolvedRun& run) {
  const data::RowsConfig& rows = run.config.rows;
  const int64_t grain = run.config.recommender.grain;
  user_check(run.micro_batch % grain == 0 || run.micro_batch >= run.maximum_samples,
             "train.micro_batch = {} must be a multiple of recommender.grain = {}. Otherwise "
             "results depend on it; lower the grain or take another micro-batch",
             run.micro_batch, grain);
  for (const data::SparseConfig& feature : rows.sparse)
    user_check(!feature.hashed() || feature.max_rows > 0,
               "rows.sparse \"{}\" has no num_rows. Give num_rows to hash its ids, or max_rows for "
               "a table without a fixed vocabulary",
               feature.feature_name());
  const embedding::PackSpec pack = RecommenderLookups(run.config).pack();
  check_overrides(run.config.embedding, pack);
  placement_options(run.config.embedding, pack);
}

void check_recommender_on_gpu(const RunConfig& config) {
  constexpr const char* kHelp = "use run.device = \"cpu\", or leave it out";
  if (config.embedding.row_dtype == "mxfp8")
    throw UserError("embedding.row_dtype = \"mxfp8\": rows on a GPU are fp32 or bf16", kHelp);
  if (!config.memory.budget.empty())
    throw UserError("memory.budget does not work with a recommender on a GPU yet", kHelp);
}

void check_recommender_recipe(const PrecisionSection& config) {
  const std::string& recipe = config.recipe;
  if (recipe != "auto" && recipe != "fp32" && recipe != "bf16")
    throw UserError(
        fmt::format("precision.recipe = \"{}\": a recommender computes in FP32 or BF16", recipe),
        "use precision.recipe = \"auto\", \"fp32\" or \"bf16\"");
}

void resolve_recommender_size(ResolvedRun& run, comm::Group& group,
                              const std::optional<std::string>& kept_precision) {
  run.precision = resolve_precision(run.config.precision.recipe, kept_precision, run.device, group);
  const RunConfig& config = run.config;
  const TotalSize tables = size_of(RecommenderLookups(config).pack());
  const DenseSize dense_part = dense_size(config, run.precision.compute);
  const int64_t dense = dense_part.parameters;
  run.size = {.parameters = dense + tables.elements,
              .parameters_without_embedding = dense,
              .active_parameters = dense + tables.columns,
              .flops_per_token = dense_part.flops};
  // A micro-batch has the tables' output, a copy of it with the dense features, and the gradients
  // of both. The whole batch has the gradients of the tables' output.
  const int64_t wide = tables.columns + config.rows.num_dense();
  const int64_t copies = config.embedding.sharding == "replicated" ? 1 : group.size();
  const int64_t row_bytes = tables.row_bytes / copies, state_bytes = kFloat * tables.state / copies;
  const double share = share_in_memory(run, row_bytes + state_bytes);
  const auto in_memory = [&](int64_t bytes) {
    return static_cast<int64_t>(share * static_cast<double>(bytes));
  };
  run.memory = {.weights = dense_part.weight_bytes + in_memory(row_bytes),
                .gradients = kFloat * (dense + config.train.batch * tables.columns),
                .optimizer = kFloat * 2 * dense + dense_part.master_bytes + in_memory(state_bytes),
                .activations = kFloat * run.micro_batch * 4 * wide,
                .checkpoint = kFloat * 3 * dense / std::max(run.checkpoint_ranks, 1),
                .all_gradients = kFloat * dense,
                .beside = run.device.is_cuda() ? 0 : kBesideRows + bytes_of_rows(config)};
}

std::string recommender_summary(const ResolvedRun& run) {
  const embedding::PackSpec pack = RecommenderLookups(run.config).pack();
  return fmt::format("{} {} parameters, {} in {} tables · {}", run.config.recommender.model,
                     format_count(static_cast<double>(run.size.parameters_without_embedding)),
                     format_count(static_cast<double>(run.size.parameters -
                                                      run.size.parameters_without_embedding)),
                     pack.tables.size(), run.precision.name);
}

}  // namespace dovetail::train
