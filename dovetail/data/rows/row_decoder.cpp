#include "dovetail/data/rows/row_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/base/hash.h"
#include "dovetail/data/rows/cell_values.h"

namespace dovetail::data {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kBadRowsKept = 8;

}  // namespace

uint64_t RowBlock::bytes() const {
  return dense.capacity() * sizeof(double) +
         (labels.capacity() + weights.capacity()) * sizeof(float) +
         (groups.capacity() + ids.capacity() + left_out.capacity()) * sizeof(int64_t) +
         ends.capacity() * sizeof(uint32_t) + days.capacity() * sizeof(DayStart);
}

RowDecoder::RowDecoder(const RowsConfig& config)
    : mask_labels_(config.missing_label == "mask"),
      label_required_(config.missing_label == "bad_row"),
      decimal_(config.decimal.empty() ? '.' : config.decimal[0]) {
  for (const std::string& text : config.label) {
    const LabelExpression expression = parse_label(text);
    labels_.push_back({column_index(expression.column), expression});
  }
  for (const DenseConfig& entry : config.dense)
    for (const std::string& column : entry.columns)
      dense_.push_back(
          {column_index(column), entry.missing == "bad_row", entry.transform == "log1p"});
  for (const SparseConfig& entry : config.sparse) features_.push_back(make_feature(entry));
  if (!config.group.empty()) group_ = static_cast<int64_t>(column_index(config.group));
  if (!config.day.empty()) day_ = static_cast<int64_t>(column_index(config.day));
}

size_t RowDecoder::column_index(const std::string& name) {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found != columns_.end()) return static_cast<size_t>(found - columns_.begin());
  columns_.push_back(name);
  return columns_.size() - 1;
}

RowDecoder::Feature RowDecoder::make_feature(const SparseConfig& config) {
  Feature feature;
  for (const std::string& column : config.columns) feature.columns.push_back(column_index(column));
  if (!config.weights.empty()) feature.weights = static_cast<int64_t>(column_index(config.weights));
  has_weights_ = has_weights_ || feature.weights >= 0;
  feature.hash = config.ids == "hash";
  if (!config.separator.empty()) feature.separator = config.separator[0];
  feature.num_rows = static_cast<uint64_t>(config.num_rows);
  feature.max_length = static_cast<size_t>(config.max_length);
  feature.keep_last = config.keep == "last";
  feature.sequence = config.sequence;
  if (config.missing == "value") feature.missing = Missing::kValue;
  if (config.missing == "bad_row") feature.missing = Missing::kBadRow;
  return feature;
}

void RowDecoder::check_lists(const std::vector<bool>& column_is_list,
                             const std::filesystem::path& path) const {
  for (const Feature& feature : features_) {
    const std::string& column = columns_[feature.columns[0]];
    const bool list = column_is_list[feature.columns[0]];
    if (list && feature.separator != 0)
      throw UserError(
          fmt::format("rows.sparse: column `{}` holds lists, but a separator is given", column),
          "leave the separator out", path.string());
    if (!list && feature.separator == 0 && feature.max_length > 0)
      throw UserError(
          fmt::format("rows.sparse: column `{}` holds one id, but max_length is given", column),
          "leave max_length out, or give the separator between its ids", path.string());
  }
}

void RowDecoder::add_bad(RowBlock& out, BadRow bad) {
  ++out.num_bad;
  out.left_out.push_back(bad.row);
  if (out.bad_rows.size() < kBadRowsKept) out.bad_rows.push_back(std::move(bad));
}

void RowDecoder::reserve(int64_t rows, RowBlock& out) const {
  const auto more = static_cast<size_t>(rows);
  out.dense.reserve(more * dense_.size());
  out.labels.reserve(more * labels_.size());
  out.ends.reserve(more * features_.size());
  out.ids.reserve(more * features_.size());
  if (has_weights_) out.weights.reserve(more * features_.size());
  if (group_ >= 0) out.groups.reserve(more);
}

void RowDecoder::decode(std::span<const Cell> cells, int64_t row, RowBlock& out) const {
  const size_t ids = out.ids.size();
  BadRow bad{row, {}, {}};
  const Labels labels = decode_labels(cells, out, bad);
  bool good = labels == Labels::kThere && decode_dense(cells, out, bad);
  int64_t events = -1;
  for (size_t f = 0; good && f < features_.size(); ++f)
    good = decode_feature(features_[f], cells, events, out, bad);
  good = good && decode_group(cells, out, bad) && decode_day(cells, out, bad);
  if (good) {
    ++out.num_rows;
    return;
  }
  take_back(ids, out);
  if (labels == Labels::kMissing) {
    ++out.num_unlabelled;
    out.left_out.push_back(row);
  } else {
    add_bad(out, std::move(bad));
  }
}

void RowDecoder::take_back(size_t ids, RowBlock& out) const {
  const auto rows = static_cast<size_t>(out.num_rows);
  out.labels.resize(rows * labels_.size());
  out.dense.resize(rows * dense_.size());
  out.ends.resize(rows * features_.size());
  out.ids.resize(ids);
  if (has_weights_) out.weights.resize(ids);
  if (group_ >= 0) out.groups.resize(rows);
}

void RowDecoder::check_ids(const RowBlock& out) {
  user_check(
      out.ids.size() <= std::numeric_limits<uint32_t>::max(),
      "rows: a row group holds more than 2^32 ids; write the Parquet file with smaller row groups");
}

bool RowDecoder::decode_group(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const {
  if (group_ < 0) return true;
  std::array<char, 24> buffer;
  std::string_view text;
  const Cell& cell = cells[static_cast<size_t>(group_)];
  const bool good = is_missing(cell) || text_of(cell, buffer, text, bad.reason);
  if (!good) bad.column = columns_[static_cast<size_t>(group_)];
  out.groups.push_back(static_cast<int64_t>(xxh64(text)));
  return good;
}

bool RowDecoder::decode_day(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const {
  if (day_ < 0) return true;
  std::array<char, 24> buffer;
  std::string_view text;
  const Cell& cell = cells[static_cast<size_t>(day_)];
  if (is_missing(cell)) bad.reason = "the day is missing";
  if (is_missing(cell) || !text_of(cell, buffer, text, bad.reason)) {
    bad.column = columns_[static_cast<size_t>(day_)];
    return false;
  }
  if (out.days.empty() || out.days.back().day != text)
    out.days.push_back({.row = out.num_rows, .number = bad.row, .day = std::string(text)});
  return true;
}

RowDecoder::Labels RowDecoder::decode_labels(std::span<const Cell> cells, RowBlock& out,
                                             BadRow& bad) const {
  size_t missing = 0;
  for (const Label& label : labels_) {
    double number = 0;
    Parsed parsed = number_of(cells[label.column], decimal_, number, bad.reason);
    if (parsed == Parsed::kThere) number = label.expression.value(number);
    if (parsed == Parsed::kThere && !(number >= 0 && number <= 1)) {
      bad.reason = fmt::format("the label is {}, not from 0 to 1", number);
      parsed = Parsed::kBad;
    }
    if (parsed == Parsed::kMissing) {
      ++missing;
      number = kNaN;
    }
    if (parsed == Parsed::kBad || (parsed == Parsed::kMissing && label_required_)) {
      bad.column = label.expression.column;
      if (parsed == Parsed::kMissing) bad.reason = "the label is missing";
      return Labels::kBad;
    }
    out.labels.push_back(static_cast<float>(number));
  }
  const bool keep = missing == 0 || (mask_labels_ && missing < labels_.size());
  return keep ? Labels::kThere : Labels::kMissing;
}

bool RowDecoder::decode_dense(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const {
  for (const Dense& dense : dense_) {
    double number = kNaN;
    const Parsed parsed = number_of(cells[dense.column], decimal_, number, bad.reason);
    if (parsed == Parsed::kMissing && dense.required) bad.reason = "the number is missing";
    if (parsed == Parsed::kBad || (parsed == Parsed::kMissing && dense.required)) {
      bad.column = columns_[dense.column];
      return false;
    }
    if (parsed == Parsed::kMissing) number = kNaN;
    // std::max would turn a missing number into 0.
    if (dense.log1p && parsed == Parsed::kThere) number = std::log1p(std::max(number, 0.0));
    if (!fits_float32(number, bad.reason)) {
      bad.column = columns_[dense.column];
      return false;
    }
    out.dense.push_back(number);
  }
  return true;
}

}  // namespace dovetail::data
