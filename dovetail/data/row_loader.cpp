#include "dovetail/data/row_loader.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/data/block_pool.h"
#include "dovetail/data/prefetch.h"

namespace dovetail {
namespace {

/// A row of a block.
struct RowRef {
  const RowBlock* block = nullptr;
  int64_t row = 0;
};

/// What turns a number of a block into one of a batch: (x - shift) * scale, or `missing` for none.
struct DenseTransform {
  double shift = 0, scale = 1;
  float missing = 0;
};

std::vector<DenseTransform> dense_transforms(const RowsConfig& config, const RowStatistics& statistics) {
  std::vector<DenseTransform> transforms;
  for (const DenseConfig& entry : config.dense)
    for (size_t c = 0; c < entry.columns.size(); ++c) {
      const DenseStatistics& column = statistics.dense[transforms.size()];
      DenseTransform t;
      if (entry.transform == "standard") {
        t.shift = column.mean;
        t.scale = column.deviation > 0 ? 1 / column.deviation : 1;
      }
      // ln(1 + 0) is 0, so that only `standard` moves a missing number that counts as 0.
      t.missing = static_cast<float>(((entry.missing == "mean" ? column.mean : 0) - t.shift) * t.scale);
      transforms.push_back(t);
    }
  return transforms;
}

/// Where blocks begin among the kept rows that they give, in file order.
class BlockStarts {
 public:
  explicit BlockStarts(int64_t first_block) : first_block_(first_block) {}
  void add(int64_t num_rows) { starts_.push_back(starts_.back() + num_rows); }
  int64_t block_of(int64_t row) const {
    return first_block_ + (std::upper_bound(starts_.begin(), starts_.end(), row) - starts_.begin()) - 1;
  }
  int64_t start_of(int64_t block) const { return starts_[static_cast<size_t>(block - first_block_)]; }

 private:
  int64_t first_block_;
  std::vector<int64_t> starts_ = {0};
};

}  // namespace

RowOrder::RowOrder(uint64_t seed, int64_t num_rows, int64_t window)
    : seed_(seed), num_rows_(num_rows), window_(window == 0 ? num_rows : std::min(window, num_rows)) {
  DOVETAIL_CHECK(num_rows > 0 && window >= 0, "{} rows in windows of {}", num_rows, window);
}

int64_t RowOrder::row(int64_t epoch, int64_t position) const {
  const int64_t window = position / window_, first = window * window_;
  const auto size = static_cast<uint64_t>(std::min(window_, num_rows_ - first));
  const uint64_t key = mix_seed(mix_seed(seed_, static_cast<uint64_t>(epoch)), static_cast<uint64_t>(window));
  return first + static_cast<int64_t>(permuted_index(key, static_cast<uint64_t>(position - first), size));
}

struct RowLoader::State {
  RowsConfig config;
  RowLoaderOptions options;
  std::unique_ptr<RowReader> reader;
  RowStatistics statistics;
  std::vector<DenseTransform> dense;
  RowOrder order;
  BlockStarts train_starts, validation_starts;
  BlockPool train_pool, validation_pool;
  bool kept = true;  ///< all blocks are in the pools for good

  State(const RowsConfig& rows, const RowLoaderOptions& given, std::unique_ptr<RowReader> opened, RowScan scan)
      : config(rows),
        options(given),
        reader(std::move(opened)),
        statistics(std::move(scan.statistics)),
        dense(dense_transforms(config, statistics)),
        order(options.seed, statistics.train_rows, config.shuffle_window),
        train_starts(0),
        validation_starts(reader->num_train_blocks()),
        train_pool(*reader, config.threads),
        validation_pool(*reader, config.threads) {
    DOVETAIL_CHECK(options.batch > 0, "batch {}", options.batch);
    DOVETAIL_CHECK(options.rank >= 0 && options.rank < options.world, "rank {} of {}", options.rank, options.world);
    for (int64_t b = 0; b < reader->num_blocks(); ++b) {
      ScannedBlock& block = scan.blocks[static_cast<size_t>(b)];
      const bool train = b < reader->num_train_blocks();
      (train ? train_starts : validation_starts).add(block.num_rows);
      kept = kept && block.rows != nullptr;
      if (block.rows != nullptr) (train ? train_pool : validation_pool).keep(b, std::move(block.rows));
    }
  }

  /// The blocks of the windows that hold positions [begin, end), counted on through the epochs, of the window after
  /// them, and as many more as there are threads.
  std::vector<int64_t> wanted_blocks(int64_t begin, int64_t end) const {
    const int64_t rows = statistics.train_rows, window = order.window();
    std::vector<int64_t> blocks;
    const auto add = [&](int64_t block) {
      if (std::find(blocks.begin(), blocks.end(), block) == blocks.end()) blocks.push_back(block);
    };
    const auto add_windows = [&](int64_t first, int64_t last) {
      const int64_t until = std::min((last / window + 1) * window, rows);
      for (int64_t b = train_starts.block_of(first / window * window); b <= train_starts.block_of(until - 1); ++b)
        add(b);
      return until;
    };
    int64_t ahead = 0;
    for (int64_t at = begin; at < end;) {
      const int64_t first = at % rows, last = std::min(first + end - at, rows) - 1;
      ahead = add_windows(first, last) % rows;
      at += last + 1 - first;
    }
    add_windows(ahead, ahead);
    for (int64_t i = 0, next = blocks.back() + 1; i < config.threads && next < reader->num_train_blocks(); ++i)
      add(next++);
    return blocks;
  }

  RowBatch make(int64_t step) {
    const int64_t begin = options.batch * options.rank / options.world;
    const int64_t end = options.batch * (options.rank + 1) / options.world;
    const int64_t first = step * options.batch;
    if (!kept && begin < end) train_pool.want(wanted_blocks(first + begin, first + end));
    std::vector<int64_t> rows;
    for (int64_t at = first + begin; at < first + end; ++at)
      rows.push_back(order.row(at / statistics.train_rows, at % statistics.train_rows));
    return gather(rows, train_starts, train_pool);
  }

  RowBatch make_validation(int64_t begin, int64_t end) {
    std::vector<int64_t> rows, blocks;
    for (int64_t row = begin; row < end; ++row) {
      rows.push_back(row);
      const int64_t block = validation_starts.block_of(row);
      if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
    }
    if (!kept && !blocks.empty()) {
      for (int64_t ahead = 0; ahead < config.threads && blocks.back() + 1 < reader->num_blocks(); ++ahead)
        blocks.push_back(blocks.back() + 1);
      validation_pool.want(blocks);
    }
    return gather(rows, validation_starts, validation_pool);
  }

  /// The batch of `rows`, which count the kept rows in file order.
  RowBatch gather(const std::vector<int64_t>& rows, const BlockStarts& starts, BlockPool& pool) const {
    std::map<int64_t, std::shared_ptr<const RowBlock>> blocks;
    std::vector<RowRef> refs;
    for (const int64_t row : rows) {
      const int64_t block = starts.block_of(row);
      auto& held = blocks[block];
      if (held == nullptr) held = pool.get(block);
      refs.push_back({held.get(), row - starts.start_of(block)});
    }
    return assemble(refs);
  }

  RowBatch assemble(const std::vector<RowRef>& refs) const {
    const RowDecoder& decoder = reader->decoder();
    const auto rows = static_cast<int64_t>(refs.size());
    const int64_t num_dense = decoder.num_dense(), num_labels = decoder.num_labels();
    RowBatch batch;
    batch.dense = at::empty({rows, num_dense}, at::kFloat);
    batch.labels = at::empty({rows, num_labels}, at::kFloat);
    auto* const dense_out = batch.dense.mutable_data_ptr<float>();
    auto* const labels_out = batch.labels.mutable_data_ptr<float>();
    for (int64_t b = 0; b < rows; ++b) {
      const RowRef& ref = refs[static_cast<size_t>(b)];
      const double* const numbers = ref.block->dense.data() + ref.row * num_dense;
      for (int64_t d = 0; d < num_dense; ++d) {
        const DenseTransform& t = dense[static_cast<size_t>(d)];
        dense_out[b * num_dense + d] =
            std::isnan(numbers[d]) ? t.missing : static_cast<float>((numbers[d] - t.shift) * t.scale);
      }
      std::copy_n(ref.block->labels.data() + ref.row * num_labels, num_labels, labels_out + b * num_labels);
    }
    assemble_ids(refs, batch);
    if (!config.group.empty()) {
      batch.groups = at::empty({rows}, at::kLong);
      auto* const groups = batch.groups.mutable_data_ptr<int64_t>();
      for (int64_t b = 0; b < rows; ++b) {
        const RowRef& ref = refs[static_cast<size_t>(b)];
        groups[b] = ref.block->groups[static_cast<size_t>(ref.row)];
      }
    }
    return batch;
  }

  void assemble_ids(const std::vector<RowRef>& refs, RowBatch& batch) const {
    const int64_t features = reader->decoder().num_features();
    const auto rows = static_cast<int64_t>(refs.size());
    batch.offsets = at::empty({features * rows + 1}, at::kLong);
    auto* const offsets = batch.offsets.mutable_data_ptr<int64_t>();
    offsets[0] = 0;
    const auto span_of = [&](int64_t f, int64_t b) {
      const RowRef& ref = refs[static_cast<size_t>(b)];
      const uint32_t begin = ref.block->begin(ref.row, f, features);
      return std::pair{begin, ref.block->ends[static_cast<size_t>(ref.row * features + f)] - begin};
    };
    for (int64_t b = 0; b < rows; ++b)
      for (int64_t f = 0; f < features; ++f) offsets[f * rows + b + 1] = span_of(f, b).second;
    for (int64_t i = 0; i < features * rows; ++i) offsets[i + 1] += offsets[i];
    batch.values = at::empty({offsets[features * rows]}, at::kLong);
    auto* const ids = batch.values.mutable_data_ptr<int64_t>();
    float* weights = nullptr;
    if (reader->decoder().has_weights()) {
      batch.weights = at::empty({offsets[features * rows]}, at::kFloat);
      weights = batch.weights.mutable_data_ptr<float>();
    }
    for (int64_t b = 0; b < rows; ++b)
      for (int64_t f = 0; f < features; ++f) {
        const auto [begin, length] = span_of(f, b);
        const RowBlock& block = *refs[static_cast<size_t>(b)].block;
        std::copy_n(block.ids.data() + begin, length, ids + offsets[f * rows + b]);
        if (weights != nullptr) std::copy_n(block.weights.data() + begin, length, weights + offsets[f * rows + b]);
      }
  }

  Prefetcher<RowBatch> prefetcher{[this](int64_t step) { return make(step); }};  ///< last: it uses the others
};

RowLoader::RowLoader(const RowsConfig& config, const RowLoaderOptions& options) {
  auto reader = std::make_unique<RowReader>(config);
  RowScan scan = scan_rows(config, *reader);
  state_ = std::make_unique<State>(config, options, std::move(reader), std::move(scan));
}

RowLoader::~RowLoader() = default;

RowBatch RowLoader::step(int64_t step) {
  DOVETAIL_CHECK(step >= 0, "step {}", step);
  return state_->prefetcher.take(step);
}

RowBatch RowLoader::validation(int64_t begin, int64_t end) {
  DOVETAIL_CHECK(begin >= 0 && begin <= end && end <= num_validation_rows(), "rows [{}, {}) of {} for validation",
                 begin, end, num_validation_rows());
  return state_->make_validation(begin, end);
}

const RowStatistics& RowLoader::statistics() const { return state_->statistics; }

std::string RowLoader::summary() const {
  const RowStatistics& s = statistics();
  std::string left_out;
  if (s.unlabelled > 0) left_out += fmt::format(", {} without label left out", format_grouped(s.unlabelled));
  if (s.bad > 0) left_out += fmt::format(", {} bad left out", format_grouped(s.bad));
  return fmt::format("{} rows to train on, {} for validation{}; decoded rows are {}", format_grouped(s.train_rows),
                     format_grouped(s.validation_rows), left_out, state_->kept ? "kept" : "read again every epoch");
}

}  // namespace dovetail
