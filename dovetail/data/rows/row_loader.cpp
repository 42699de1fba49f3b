#include "dovetail/data/rows/row_loader.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/data/files/prefetch.h"
#include "dovetail/data/rows/block_pool.h"

namespace dovetail::data {
namespace {

/// First kept row of each block, in file order.
class BlockStarts {
 public:
  explicit BlockStarts(int64_t first_block) : first_block_(first_block) {}
  void add(int64_t num_rows) { starts_.push_back(starts_.back() + num_rows); }
  int64_t block_of(int64_t row) const {
    return first_block_ +
           (std::upper_bound(starts_.begin(), starts_.end(), row) - starts_.begin()) - 1;
  }
  int64_t start_of(int64_t block) const {
    return starts_[static_cast<size_t>(block - first_block_)];
  }

 private:
  int64_t first_block_;
  std::vector<int64_t> starts_ = {0};
};

/// Returns the scales in `known`, and the `measured` ones for columns without.
std::vector<DenseScale> known_or_measured(const std::vector<std::optional<DenseScale>>& known,
                                          std::vector<DenseScale> measured) {
  for (size_t i = 0; i < known.size(); ++i)
    if (known[i]) measured[i] = *known[i];
  return measured;
}

}  // namespace

RowOrder::RowOrder(uint64_t seed, int64_t num_rows, int64_t window)
    : seed_(seed),
      num_rows_(num_rows),
      window_(window == 0 ? num_rows : std::min(window, num_rows)) {
  DOVETAIL_CHECK(num_rows > 0 && window >= 0, "{} rows in windows of {}", num_rows, window);
}

int64_t RowOrder::row(int64_t epoch, int64_t position) const {
  const int64_t window = position / window_, first = window * window_;
  const auto size = static_cast<uint64_t>(std::min(window_, num_rows_ - first));
  const uint64_t key =
      mix_seed(mix_seed(seed_, static_cast<uint64_t>(epoch)), static_cast<uint64_t>(window));
  return first +
         static_cast<int64_t>(permuted_index(key, static_cast<uint64_t>(position - first), size));
}

struct RowLoader::State {
  RowsConfig config;
  RowLoaderOptions options;
  std::unique_ptr<RowReader> reader;
  RowStatistics statistics;
  std::vector<DenseScale> scales;
  RowAssembler assembler;
  RowOrder order;
  DayOrder days;
  BlockStarts train_starts, validation_starts;
  BlockPool train_pool, validation_pool;
  /// Part of each step that set_part has given to this rank. nullopt: part `rank` of `world` equal
  /// parts.
  std::optional<std::pair<int64_t, int64_t>> own_part;
  bool kept = true;  ///< true if the pools keep all blocks

  State(const RowsConfig& rows, const RowLoaderOptions& given, std::unique_ptr<RowReader> opened,
        RowScan scan)
      : config(rows),
        options(given),
        reader(std::move(opened)),
        statistics(std::move(scan.statistics)),
        scales(known_or_measured(options.scales, statistics.scales)),
        assembler(config, reader->decoder(), scales),
        order(options.seed, statistics.train_rows, config.shuffle_window),
        days(options.seed, statistics.days, config.shuffle_window, options.batch),
        train_starts(0),
        validation_starts(reader->num_train_blocks()),
        train_pool(*reader, config.threads),
        validation_pool(*reader, config.threads) {
    DOVETAIL_CHECK(options.batch > 0, "batch {}", options.batch);
    DOVETAIL_CHECK(options.rank >= 0 && options.rank < options.world, "rank {} of {}", options.rank,
                   options.world);
    for (int64_t b = 0; b < reader->num_blocks(); ++b) {
      ScannedBlock& block = scan.blocks[static_cast<size_t>(b)];
      const bool train = b < reader->num_train_blocks();
      (train ? train_starts : validation_starts).add(block.num_rows);
      kept = kept && block.rows != nullptr;
      if (block.rows == nullptr) continue;
      // The second pool is for reading forward to evaluate. It does not displace blocks that steps
      // have prefetched.
      if (!train || config.by_day()) validation_pool.keep(b, block.rows);
      if (train) train_pool.keep(b, std::move(block.rows));
    }
  }

  /// Returns the blocks of the windows that hold positions [begin, end), counted on through the
  /// epochs. Adds the blocks of the next window and as many further blocks as there are threads.
  std::vector<int64_t> wanted_blocks(int64_t begin, int64_t end) const {
    const int64_t rows = statistics.train_rows, window = order.window();
    std::vector<int64_t> blocks;
    const auto add = [&](int64_t block) {
      if (std::find(blocks.begin(), blocks.end(), block) == blocks.end()) blocks.push_back(block);
    };
    const auto add_windows = [&](int64_t first, int64_t last) {
      const int64_t until = std::min((last / window + 1) * window, rows);
      for (int64_t b = train_starts.block_of(first / window * window);
           b <= train_starts.block_of(until - 1); ++b)
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
    for (int64_t i = 0, next = blocks.back() + 1;
         i < config.threads && next < reader->num_train_blocks(); ++i)
      add(next++);
    return blocks;
  }

  /// Returns the blocks of the windows that a step of a day reads, and as many further blocks as
  /// there are threads.
  std::vector<int64_t> wanted_blocks(int64_t step) const {
    const auto [first, last] = days.windows(step);
    const int64_t end =
        std::min(train_starts.block_of(last - 1) + 1 + config.threads, reader->num_train_blocks());
    std::vector<int64_t> blocks;
    for (int64_t b = train_starts.block_of(first); b < end; ++b) blocks.push_back(b);
    return blocks;
  }

  /// Returns this rank's part of a step, counted from the step's first row.
  std::pair<int64_t, int64_t> part(int64_t rows) const {
    if (own_part) return {std::min(own_part->first, rows), std::min(own_part->second, rows)};
    return {rows * options.rank / options.world, rows * (options.rank + 1) / options.world};
  }

  RowBatch make(int64_t step) {
    if (config.by_day()) return make_of_day(step);
    const auto [begin, end] = part(options.batch);
    const int64_t first = step * options.batch;
    if (!kept && begin < end) train_pool.want(wanted_blocks(first + begin, first + end));
    std::vector<int64_t> rows;
    for (int64_t at = first + begin; at < first + end; ++at)
      rows.push_back(order.row(at / statistics.train_rows, at % statistics.train_rows));
    return gather(rows, train_starts, train_pool);
  }

  RowBatch make_of_day(int64_t step) {
    if (step >= days.num_steps()) return {};  // the prefetcher continues after the last step
    if (!kept) train_pool.want(wanted_blocks(step));
    const auto [begin, end] = part(days.num_rows(step));
    std::vector<int64_t> rows;
    for (int64_t i = begin; i < end; ++i) rows.push_back(days.row(step, i));
    return gather(rows, train_starts, train_pool);
  }

  /// Returns rows [begin, end), counted from the first block of `starts`.
  RowBatch read_forward(int64_t begin, int64_t end, const BlockStarts& starts) {
    std::vector<int64_t> rows, blocks;
    for (int64_t row = begin; row < end; ++row) {
      rows.push_back(row);
      const int64_t block = starts.block_of(row);
      if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
    }
    if (!kept && !blocks.empty()) {
      for (int64_t ahead = 0; ahead < config.threads && blocks.back() + 1 < reader->num_blocks();
           ++ahead)
        blocks.push_back(blocks.back() + 1);
      validation_pool.want(blocks);
    }
    return gather(rows, starts, validation_pool);
  }

  /// Returns the batch of `rows`, which are indices among the kept rows in file order.
  RowBatch gather(const std::vector<int64_t>& rows, const BlockStarts& starts,
                  BlockPool& pool) const {
    std::map<int64_t, std::shared_ptr<const RowBlock>> blocks;
    std::vector<RowRef> refs;
    for (const int64_t row : rows) {
      const int64_t block = starts.block_of(row);
      auto& held = blocks[block];
      if (held == nullptr) held = pool.get(block);
      refs.push_back({held, row - starts.start_of(block)});
    }
    return assembler.batch(refs);
  }

  void start() {
    prefetcher.emplace([this](int64_t step) { return make(step); });
  }

  /// Last member, since its thread uses the others.
  std::optional<Prefetcher<RowBatch>> prefetcher;
};

RowLoader::RowLoader(const RowsConfig& config, const RowLoaderOptions& options) {
  DOVETAIL_CHECK(options.scales.empty() || std::ssize(options.scales) == config.num_dense(),
                 "{} scales for {} columns", options.scales.size(), config.num_dense());
  auto reader = std::make_unique<RowReader>(config);
  RowScan scan = scan_rows(config, *reader);
  state_ = std::make_unique<State>(config, options, std::move(reader), std::move(scan));
  state_->start();
}

RowLoader::~RowLoader() = default;

RowBatch RowLoader::step(int64_t step) {
  DOVETAIL_CHECK(step >= 0, "step {}", step);
  return state_->prefetcher->take(step);
}

void RowLoader::set_part(int64_t begin, int64_t end) {
  DOVETAIL_CHECK(begin >= 0 && begin < end && end <= state_->options.batch, "rows [{}, {}) of {}",
                 begin, end, state_->options.batch);
  if (state_->own_part == std::pair(begin, end)) return;
  state_->prefetcher.reset();
  state_->own_part = {begin, end};
  state_->start();
}

RowBatch RowLoader::validation(int64_t begin, int64_t end) {
  DOVETAIL_CHECK(begin >= 0 && begin <= end && end <= num_validation_rows(),
                 "rows [{}, {}) of {} for validation", begin, end, num_validation_rows());
  return state_->read_forward(begin, end, state_->validation_starts);
}

const DayOrder& RowLoader::days() const { return state_->days; }

RowBatch RowLoader::day(int64_t day, int64_t begin, int64_t end) {
  const RowDay& rows = days().days().at(static_cast<size_t>(day));
  DOVETAIL_CHECK(begin >= 0 && begin <= end && end <= rows.num_rows, "rows [{}, {}) of {}", begin,
                 end, rows.num_rows);
  return state_->read_forward(rows.first_row + begin, rows.first_row + end, state_->train_starts);
}

const std::vector<DenseScale>& RowLoader::scales() const { return state_->scales; }

const RowStatistics& RowLoader::statistics() const { return state_->statistics; }

std::string RowLoader::summary() const {
  const RowStatistics& s = statistics();
  std::string left_out;
  if (s.unlabelled > 0)
    left_out += fmt::format(", {} without label left out", format_grouped(s.unlabelled));
  if (s.bad > 0) left_out += fmt::format(", {} bad left out", format_grouped(s.bad));
  if (state_->config.by_day())
    return fmt::format("{} rows of {} days, from {} to {}{}; decoded rows are {}",
                       format_grouped(s.train_rows), format_grouped(std::ssize(s.days)),
                       s.days.front().name, s.days.back().name, left_out,
                       state_->kept ? "kept" : "read again");
  return fmt::format("{} rows to train on, {} for validation{}; decoded rows are {}",
                     format_grouped(s.train_rows), format_grouped(s.validation_rows), left_out,
                     state_->kept ? "kept" : "read again every epoch");
}

}  // namespace dovetail::data
