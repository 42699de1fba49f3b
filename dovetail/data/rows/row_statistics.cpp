#include "dovetail/data/rows/row_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "dovetail/base/error.h"

namespace dovetail::data {
namespace {

constexpr uint64_t kSlots = uint64_t{1} << 24;
constexpr size_t kBadRowsShown = 8;
constexpr double kHighShare = 0.1;

/// Set of a feature's ids in the training rows.
class SeenIds {
 public:
  explicit SeenIds(uint64_t num_rows)
      : slots_(num_rows == 0 ? kSlots : std::min(num_rows, kSlots)), words_(slots_ / 64 + 1) {}

  void add(int64_t id) {
    auto& word = words_[slot(id) / 64];
    const uint64_t bit = uint64_t{1} << slot(id) % 64;
    if ((word.load(std::memory_order_relaxed) & bit) == 0)
      word.fetch_or(bit, std::memory_order_relaxed);
  }
  bool has(int64_t id) const {
    return (words_[slot(id) / 64].load(std::memory_order_relaxed) >> slot(id) % 64 & 1) != 0;
  }
  int64_t count() const {
    int64_t bits = 0;
    for (const auto& word : words_) bits += std::popcount(word.load(std::memory_order_relaxed));
    return bits;
  }

 private:
  uint64_t slot(int64_t id) const { return static_cast<uint64_t>(id) % kSlots; }
  uint64_t slots_;
  std::vector<std::atomic<uint64_t>> words_;
};

/// Moments of one column over some rows, merged by the formula of Chan, Golub and LeVeque.
struct Moments {
  int64_t count = 0, missing = 0;
  double mean = 0, squares = 0;
  double lowest = std::numeric_limits<double>::infinity(),
         highest = -std::numeric_limits<double>::infinity();

  void add(double x) {
    if (std::isnan(x)) {
      ++missing;
      return;
    }
    const double distance = x - mean;
    mean += distance / static_cast<double>(++count);
    squares += distance * (x - mean);
    lowest = std::min(lowest, x);
    highest = std::max(highest, x);
  }

  double deviation() const {
    return count == 0 ? 0 : std::sqrt(squares / static_cast<double>(count));
  }

  void merge(const Moments& other) {
    missing += other.missing;
    if (other.count == 0) return;
    const auto ours = static_cast<double>(count), theirs = static_cast<double>(other.count);
    const double distance = other.mean - mean;
    mean += distance * theirs / (ours + theirs);
    squares += other.squares + distance * distance * ours * theirs / (ours + theirs);
    count += other.count;
    lowest = std::min(lowest, other.lowest);
    highest = std::max(highest, other.highest);
  }
};

/// Summary of a block. It is kept even if the block itself is not.
struct BlockSummary {
  int64_t num_rows = 0, bad = 0, unlabelled = 0;
  std::vector<BadRow> bad_rows;
  std::vector<Moments> dense, labels;
  std::vector<Moments> first_day;  ///< `dense` over the rows of the block's first day
  std::vector<RowBlock::DayStart> days;
  std::vector<uint8_t> id_forms;
  std::vector<SparseStatistics> sparse;
};

class Scan {
 public:
  Scan(const RowsConfig& config, const RowReader& reader)
      : config_(config), reader_(reader), summaries_(static_cast<size_t>(reader.num_blocks())) {
    out_.blocks.resize(summaries_.size());
    for (const SparseConfig& feature : config.sparse)
      seen_.emplace_back(static_cast<uint64_t>(feature.num_rows));
  }

  RowScan run() {
    // Two scans: unseen ids are known only after all training rows.
    scan(0, reader_.num_train_blocks(), true);
    scan(reader_.num_train_blocks(), reader_.num_blocks(), false);
    if (!keep_)
      for (ScannedBlock& block : out_.blocks) block.rows = nullptr;
    merge();
    return std::move(out_);
  }

 private:
  void scan(int64_t begin, int64_t end, bool train) {
    std::atomic<int64_t> next = begin;
    const auto work = [&] {
      for (int64_t b = next++; b < end; b = next++) {
        const bool stop = !scan_block(b, train);
        if (stop) next = end;
      }
    };
    std::vector<std::jthread> threads;
    for (int64_t t = 1; t < std::min(config_.threads, end - begin); ++t) threads.emplace_back(work);
    work();
    threads.clear();
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    check_bad_rows(begin, end);
  }

  /// Scans block `b`. Returns false if there is no use in reading on.
  bool scan_block(int64_t b, bool train) {
    BlockSummary& summary = summaries_[static_cast<size_t>(b)];
    ScannedBlock& scanned = out_.blocks[static_cast<size_t>(b)];
    try {
      auto rows = std::make_shared<RowBlock>(reader_.read(b));
      summarise(*rows, train, summary);
      scanned.num_rows = rows->num_rows;
      if (keep_ && (bytes_ += rows->bytes()) > static_cast<uint64_t>(config_.cache_bytes))
        keep_ = false;
      if (keep_) scanned.rows = std::move(rows);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (failure_ == nullptr) failure_ = std::current_exception();
      return false;
    }
    // Threads have already taken all earlier blocks, so the first bad row will be found.
    return (num_bad_ += summary.bad) <= allowed();
  }

  int64_t allowed() const { return config_.bad_row == "skip" ? config_.max_bad_rows : 0; }

  void summarise(const RowBlock& rows, bool train, BlockSummary& summary) {
    summary.num_rows = rows.num_rows;
    summary.bad = rows.num_bad;
    summary.unlabelled = rows.num_unlabelled;
    summary.bad_rows = rows.bad_rows;
    const auto num_dense = static_cast<size_t>(reader_.decoder().num_dense());
    const auto num_labels = static_cast<size_t>(reader_.decoder().num_labels());
    summary.dense.resize(num_dense);
    summary.labels.resize(num_labels);
    summary.sparse.resize(seen_.size());
    summary.first_day.resize(num_dense);
    summary.days = rows.days;
    summary.id_forms = rows.id_forms;
    const auto first_day =
        static_cast<size_t>(rows.days.size() > 1 ? rows.days[1].row : rows.num_rows);
    if (train) {
      for (size_t r = 0; r < static_cast<size_t>(rows.num_rows); ++r) {
        for (size_t d = 0; d < num_dense; ++d) {
          summary.dense[d].add(rows.dense[r * num_dense + d]);
          if (config_.by_day() && r < first_day)
            summary.first_day[d].add(rows.dense[r * num_dense + d]);
        }
        for (size_t l = 0; l < num_labels; ++l)
          summary.labels[l].add(static_cast<double>(rows.labels[r * num_labels + l]));
      }
    }
    for (size_t f = 0; f < seen_.size(); ++f) summarise_feature(rows, f, train, summary.sparse[f]);
  }

  void summarise_feature(const RowBlock& rows, size_t f, bool train, SparseStatistics& out) {
    out.shortest = std::numeric_limits<int64_t>::max();
    const auto features = static_cast<int64_t>(seen_.size());
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      const uint32_t begin = rows.begin(r, static_cast<int64_t>(f), features);
      const uint32_t end = rows.ends[static_cast<size_t>(r * features) + f];
      for (uint32_t i = begin; i < end; ++i) {
        if (train)
          seen_[f].add(rows.ids[i]);
        else
          out.unseen += !seen_[f].has(rows.ids[i]);
      }
      const auto length = static_cast<int64_t>(end - begin);
      (train ? out.ids : out.validation_ids) += length;
      if (!train) continue;
      out.shortest = std::min(out.shortest, length);
      out.longest = std::max(out.longest, length);
      out.empty += length == 0;
    }
  }

  std::string describe(int64_t block, const BadRow& bad) const {
    const std::string column = bad.column.empty() ? "" : fmt::format(", column `{}`", bad.column);
    return fmt::format("{}: row {}{}: {}", reader_.file_of(block).string(), bad.row, column,
                       bad.reason);
  }

  void check_bad_rows(int64_t begin, int64_t end) {
    int64_t bad = 0;
    for (int64_t b = 0; b < end; ++b) {
      const BlockSummary& summary = summaries_[static_cast<size_t>(b)];
      for (const BadRow& row : summary.bad_rows)
        if (b >= begin && out_.statistics.bad_rows.size() < kBadRowsShown)
          out_.statistics.bad_rows.push_back(describe(b, row));
      bad += summary.bad;
    }
    if (bad <= allowed()) return;
    const std::string& first = out_.statistics.bad_rows.front();
    if (config_.bad_row == "error")
      throw UserError("a bad row: " + first,
                      "mend it, or set rows.bad_row = \"skip\" to leave such rows out");
    std::string all;
    for (const std::string& row : out_.statistics.bad_rows) all += "\n  " + row;
    throw UserError(fmt::format("more than rows.max_bad_rows = {} bad rows; the first:{}",
                                config_.max_bad_rows, all),
                    "mend the files or the columns of [rows], or raise rows.max_bad_rows");
  }

  void merge() {
    RowStatistics& s = out_.statistics;
    const auto num_train = static_cast<size_t>(reader_.num_train_blocks());
    std::vector<Moments> dense(static_cast<size_t>(reader_.decoder().num_dense())),
        first_day(dense.size());
    std::vector<Moments> labels(static_cast<size_t>(reader_.decoder().num_labels()));
    for (const SparseConfig& feature : config_.sparse) {
      s.sparse.push_back({.feature = feature.feature_name()});
      s.sparse.back().shortest = std::numeric_limits<int64_t>::max();
    }
    for (size_t b = 0; b < summaries_.size(); ++b) {
      const BlockSummary& summary = summaries_[b];
      (b < num_train ? s.train_rows : s.validation_rows) += summary.num_rows;
      s.bad += summary.bad;
      s.unlabelled += summary.unlabelled;
      for (size_t i = 0; i < dense.size(); ++i) dense[i].merge(summary.dense[i]);
      if (s.days.empty() ||
          (s.days.size() == 1 && summary.num_rows > 0 && summary.days[0].day == s.days[0].name))
        for (size_t i = 0; i < dense.size(); ++i) first_day[i].merge(summary.first_day[i]);
      merge_days(static_cast<int64_t>(b));
      for (size_t i = 0; i < labels.size(); ++i) labels[i].merge(summary.labels[i]);
      for (size_t f = 0; f < s.sparse.size(); ++f) merge_feature(summary.sparse[f], s.sparse[f]);
    }
    for (size_t f = 0; f < s.sparse.size(); ++f) s.sparse[f].distinct = seen_[f].count();
    for (const std::string& label : config_.label) s.labels.push_back(label);
    find_seen_labels();
    for (const Moments& label : labels) s.label_mean.push_back(label.mean);
    size_t i = 0;
    for (const DenseConfig& entry : config_.dense)
      for (const std::string& column : entry.columns) {
        const Moments& m = dense[i];
        const Moments& scale = config_.by_day() ? first_day[i] : m;
        s.dense.push_back({column, m.count, m.missing, m.mean, m.deviation(), m.lowest, m.highest,
                           entry.transform == "standard"});
        s.scales.push_back({column, scale.mean, scale.deviation()});
        ++i;
      }
    find_float_ids();
    if (s.train_rows == 0)
      throw UserError(fmt::format("rows: none of {} rows is left to train on; {} have no label, {} "
                                  "are bad, {} are for validation",
                                  reader_.num_rows(), s.unlabelled, s.bad, s.validation_rows),
                      "see rows.label and rows.validation_fraction");
  }

  void find_seen_labels() {
    std::set<std::string> inputs;
    for (const DenseConfig& entry : config_.dense)
      inputs.insert(entry.columns.begin(), entry.columns.end());
    for (const SparseConfig& feature : config_.sparse) {
      inputs.insert(feature.columns.begin(), feature.columns.end());
      inputs.insert(feature.weights);
    }
    for (const std::string& label : config_.label)
      if (const auto seen = inputs.extract(parse_label(label).column))
        out_.statistics.seen_labels.push_back(seen.value());
  }

  /// Finds hashed columns whose ids all read like floats in one file.
  void find_float_ids() {
    FloatIds ids;
    for (size_t b = 0; b < summaries_.size(); ++b)
      ids.add(reader_.file_of(static_cast<int64_t>(b)), summaries_[b].id_forms);
    out_.statistics.float_ids = ids.found(reader_.decoder().columns());
  }

  /// Appends the days that begin in a block to the days of earlier blocks.
  void merge_days(int64_t block) {
    const BlockSummary& summary = summaries_[static_cast<size_t>(block)];
    std::vector<RowDay>& days = out_.statistics.days;
    for (size_t i = 0; i < summary.days.size(); ++i) {
      const RowBlock::DayStart& start = summary.days[i];
      const int64_t end = i + 1 < summary.days.size() ? summary.days[i + 1].row : summary.num_rows;
      if (days.empty()) days.push_back({.name = start.day});
      RowDay& last = days.back();
      if (start.day != last.name && !comes_before(last.name, start.day))
        throw UserError(
            "rows.day: " +
                describe(block, {start.number, config_.day,
                                 fmt::format("\"{}\" comes after \"{}\"", start.day, last.name)}),
            "write the rows in the order of their days, such as 20130131 or 2013-01-31");
      if (start.day != last.name)
        days.push_back({.name = start.day, .first_row = last.first_row + last.num_rows});
      days.back().num_rows += end - start.row;
    }
  }

  static void merge_feature(const SparseStatistics& from, SparseStatistics& to) {
    to.ids += from.ids;
    to.validation_ids += from.validation_ids;
    to.unseen += from.unseen;
    to.empty += from.empty;
    to.shortest = std::min(to.shortest, from.shortest);
    to.longest = std::max(to.longest, from.longest);
  }

  const RowsConfig& config_;
  const RowReader& reader_;
  std::vector<BlockSummary> summaries_;
  std::vector<SeenIds> seen_;
  RowScan out_;
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::atomic<int64_t> num_bad_ = 0;
  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<bool> keep_ = true;
};

}  // namespace

RowScan scan_rows(const RowsConfig& config, const RowReader& reader) {
  return Scan(config, reader).run();
}

void FloatIds::add(const std::filesystem::path& file, const std::vector<uint8_t>& id_forms) {
  if (files_.empty() || files_.back().first != file.string())
    files_.emplace_back(file.string(), id_forms);
  std::vector<uint8_t>& forms = files_.back().second;
  forms.resize(std::max(forms.size(), id_forms.size()));
  for (size_t c = 0; c < id_forms.size(); ++c) forms[c] |= id_forms[c];
}

std::map<std::string, std::string> FloatIds::found(const std::vector<std::string>& columns) const {
  std::map<std::string, std::string> found;
  for (const auto& [file, forms] : files_)
    for (size_t c = 0; c < forms.size(); ++c)
      if (forms[c] == RowBlock::kWholeFloat) found.try_emplace(columns[c], file);
  return found;
}

std::vector<std::string> float_id_warnings(const std::map<std::string, std::string>& float_ids) {
  std::vector<std::string> warnings;
  for (const auto& [column, file] : float_ids)
    warnings.push_back(
        fmt::format("{}: all ids of column `{}` read like 7.0, so they are not the id 7 of other "
                    "files. Write the column as integers (pandas: astype(\"Int64\"))",
                    file, printable(column)));
  return warnings;
}

std::vector<std::string> row_warnings(const RowStatistics& s) {
  std::vector<std::string> warnings;
  for (size_t i = 0; i < s.labels.size(); ++i)
    if (s.label_mean[i] == 0 || s.label_mean[i] == 1)
      warnings.push_back(
          fmt::format("label `{}` is {} in all of the training rows: there is nothing to learn",
                      s.labels[i], s.label_mean[i]));
  for (const std::string& column : s.seen_labels)
    warnings.push_back(fmt::format(
        "the model sees its own label: column `{}` of rows.label is also an input", column));
  for (const DenseStatistics& d : s.dense)
    if (d.count == 0 || (d.missing == 0 && d.lowest == d.highest))
      warnings.push_back(
          d.count == 0
              ? fmt::format("dense column `{}` is missing in all of the training rows", d.column)
              : fmt::format("dense column `{}` is {} in all of the training rows", d.column,
                            d.lowest));
  for (const DenseStatistics& d : s.dense) {
    constexpr double kRounding = 1.0 / (1 << 24), kNoticed = 1e-3;
    const double loss = kRounding * std::max(std::abs(d.lowest), std::abs(d.highest));
    if (d.count > 0 && !d.standard && d.deviation > 0 && loss > kNoticed * d.deviation)
      warnings.push_back(
          fmt::format("dense column `{}`: float32 rounds numbers of {:.6g} by {:.3g}, but their "
                      "deviation is {:.3g}; set transform = \"standard\"",
                      d.column, d.highest, loss, d.deviation));
  }
  for (const SparseStatistics& f : s.sparse) {
    if (f.distinct <= 1 && f.shortest == f.longest)
      warnings.push_back(
          fmt::format("feature `{}` is the same in all of the training rows", f.feature));
    if (static_cast<double>(f.unseen) > kHighShare * static_cast<double>(f.validation_ids))
      warnings.push_back(fmt::format(
          "feature `{}`: {:.0f} % of its ids in validation are in no training row", f.feature,
          100.0 * static_cast<double>(f.unseen) / static_cast<double>(f.validation_ids)));
  }
  for (std::string& warning : float_id_warnings(s.float_ids))
    warnings.push_back(std::move(warning));
  const int64_t all = s.train_rows + s.validation_rows + s.bad + s.unlabelled;
  if (static_cast<double>(s.bad) > kHighShare * static_cast<double>(all))
    warnings.push_back(fmt::format("{} of {} rows are bad and left out", s.bad, all));
  return warnings;
}

}  // namespace dovetail::data
