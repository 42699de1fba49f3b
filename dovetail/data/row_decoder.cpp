#include "dovetail/data/row_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/data/hash.h"

namespace dovetail {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr char kCrossSeparator = '\x1f';
constexpr size_t kBadRowsKept = 8;

enum class Parsed { kThere, kMissing, kBad };

std::string shown(std::string_view text) {
  constexpr size_t kLongest = 40;
  return "\"" + printable(text.substr(0, kLongest)) + (text.size() > kLongest ? "...\"" : "\"");
}

template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

/// A finite number; the reason is written where there is none.
Parsed number_of(const Cell& cell, double& number, std::string& reason) {
  switch (cell.kind) {
    case Cell::Kind::kMissing:
      return Parsed::kMissing;
    case Cell::Kind::kInteger:
      number = static_cast<double>(cell.integer);
      return Parsed::kThere;
    case Cell::Kind::kReal:
      number = cell.real;
      if (std::isnan(number)) return Parsed::kMissing;
      break;
    case Cell::Kind::kText:
      if (!parse_number(*cell.text, number)) {
        reason = shown(*cell.text) + " is not a number";
        return Parsed::kBad;
      }
      break;
    case Cell::Kind::kList:
      reason = "a list, where one number is wanted";
      return Parsed::kBad;
  }
  if (std::isfinite(number)) return Parsed::kThere;
  reason = fmt::format("{} is not finite", number);
  return Parsed::kBad;
}

/// The text that is hashed. Integers are written into `buffer`.
bool text_of(const Cell& cell, std::array<char, 24>& buffer, std::string_view& text, std::string& reason) {
  if (cell.kind == Cell::Kind::kInteger) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), cell.integer).ptr;
    text = std::string_view(buffer.data(), static_cast<size_t>(end - buffer.data()));
    return true;
  }
  if (cell.kind == Cell::Kind::kText) {
    text = *cell.text;
    return true;
  }
  reason = cell.kind == Cell::Kind::kReal ? "a float is no id; write the column as integers or strings"
                                          : "a list, where one id is wanted";
  return false;
}

void set_value(const ColumnValues& values, int64_t i, Cell& cell) {
  const auto at = static_cast<size_t>(i);
  if (values.value_present[at] == 0) {
    cell.kind = Cell::Kind::kMissing;
  } else if (values.kind == ColumnValues::Kind::kText) {
    const auto code = static_cast<size_t>(values.codes[at]);
    cell.kind = Cell::Kind::kText;
    cell.text = &values.words[code];
    cell.key = &values.keys[code];
  } else if (values.kind == ColumnValues::Kind::kInteger) {
    cell.kind = Cell::Kind::kInteger;
    cell.integer = values.integers[at];
  } else {
    cell.kind = Cell::Kind::kReal;
    cell.real = values.reals[at];
  }
}

/// `visit(cell)` for each value of a cell until it returns false: of a list, of a text with separators, or the one.
template <class Visit>
bool for_each_value(const Cell& cell, char separator, Visit&& visit) {
  if (cell.kind == Cell::Kind::kList) {
    Cell value;
    for (int64_t i = cell.begin; i < cell.end; ++i) {
      set_value(*cell.list, i, value);
      if (!visit(value)) return false;
    }
    return true;
  }
  if (cell.kind != Cell::Kind::kText || separator == 0) return visit(cell);
  for (size_t at = 0; at <= cell.text->size();) {
    const size_t end = std::min(cell.text->find(separator, at), cell.text->size());
    const std::string_view text = cell.text->substr(at, end - at);
    Cell part;
    part.text = &text;
    part.kind = text.empty() ? Cell::Kind::kMissing : Cell::Kind::kText;
    if (!visit(part)) return false;
    at = end + 1;
  }
  return true;
}

}  // namespace

int64_t RowDecoder::table_row(uint64_t key, uint64_t num_rows) {
  return static_cast<int64_t>(num_rows == 0 ? key : key % num_rows);
}

void set_row_cell(const ColumnValues& values, int64_t row, Cell& cell) {
  if (!values.is_list) {
    set_value(values, row, cell);
    return;
  }
  const auto at = static_cast<size_t>(row);
  cell.kind = values.list_present[at] == 0 ? Cell::Kind::kMissing : Cell::Kind::kList;
  cell.list = &values;
  cell.begin = values.list_begins[at];
  cell.end = values.list_begins[at + 1];
}

uint64_t RowBlock::bytes() const {
  return dense.capacity() * sizeof(double) + (labels.capacity() + weights.capacity()) * sizeof(float) +
         (groups.capacity() + ids.capacity() + left_out.capacity()) * sizeof(int64_t) +
         ends.capacity() * sizeof(uint32_t) + days.capacity() * sizeof(DayStart);
}

RowDecoder::RowDecoder(const RowsConfig& config)
    : mask_labels_(config.missing_label == "mask"), label_required_(config.missing_label == "bad_row") {
  for (const std::string& text : config.label) {
    const LabelExpression expression = parse_label(text);
    labels_.push_back({column_index(expression.column), expression});
  }
  for (const DenseConfig& entry : config.dense)
    for (const std::string& column : entry.columns)
      dense_.push_back({column_index(column), entry.missing == "bad_row", entry.transform == "log1p"});
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

void RowDecoder::check_lists(const std::vector<bool>& column_is_list, const std::filesystem::path& path) const {
  for (const Feature& feature : features_) {
    const std::string& column = columns_[feature.columns[0]];
    const bool list = column_is_list[feature.columns[0]];
    if (list && feature.separator != 0)
      throw UserError(fmt::format("rows.sparse: column `{}` holds lists, but a separator is given", column),
                      "leave the separator out", path.string());
    if (!list && feature.separator == 0 && feature.max_length > 0)
      throw UserError(fmt::format("rows.sparse: column `{}` holds one id, but max_length is given", column),
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
  for (size_t f = 0; good && f < features_.size(); ++f) good = decode_feature(features_[f], cells, events, out, bad);
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
  user_check(out.ids.size() <= std::numeric_limits<uint32_t>::max(),
             "rows: a row group holds more than 2^32 ids; write the Parquet file with smaller row groups");
}

bool RowDecoder::decode_group(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const {
  if (group_ < 0) return true;
  std::array<char, 24> buffer;
  std::string_view text;
  const Cell& cell = cells[static_cast<size_t>(group_)];
  const bool good = cell.kind == Cell::Kind::kMissing || text_of(cell, buffer, text, bad.reason);
  if (!good) bad.column = columns_[static_cast<size_t>(group_)];
  out.groups.push_back(static_cast<int64_t>(xxh64(text)));
  return good;
}

bool RowDecoder::decode_day(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const {
  if (day_ < 0) return true;
  std::array<char, 24> buffer;
  std::string_view text;
  const Cell& cell = cells[static_cast<size_t>(day_)];
  if (cell.kind == Cell::Kind::kMissing) bad.reason = "the day is missing";
  if (cell.kind == Cell::Kind::kMissing || !text_of(cell, buffer, text, bad.reason)) {
    bad.column = columns_[static_cast<size_t>(day_)];
    return false;
  }
  if (out.days.empty() || out.days.back().day != text)
    out.days.push_back({.row = out.num_rows, .number = bad.row, .day = std::string(text)});
  return true;
}

RowDecoder::Labels RowDecoder::decode_labels(std::span<const Cell> cells, RowBlock& out, BadRow& bad) const {
  size_t missing = 0;
  for (const Label& label : labels_) {
    double number = 0;
    Parsed parsed = number_of(cells[label.column], number, bad.reason);
    if (parsed == Parsed::kThere && label.expression.compare) {
      number = number > label.expression.threshold ? 1 : 0;
    } else if (parsed == Parsed::kThere && !(number >= 0 && number <= 1)) {
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
    const Parsed parsed = number_of(cells[dense.column], number, bad.reason);
    if (parsed == Parsed::kMissing && dense.required) bad.reason = "the number is missing";
    if (parsed == Parsed::kBad || (parsed == Parsed::kMissing && dense.required)) {
      bad.column = columns_[dense.column];
      return false;
    }
    if (parsed == Parsed::kMissing) number = kNaN;
    // std::max would turn a missing number into 0.
    out.dense.push_back(dense.log1p && parsed == Parsed::kThere ? std::log1p(std::max(number, 0.0)) : number);
  }
  return true;
}

bool RowDecoder::decode_feature(const Feature& feature, std::span<const Cell> cells, int64_t& events, RowBlock& out,
                                BadRow& bad) const {
  const size_t first = out.ids.size();
  bool good = feature.columns.size() > 1 ? decode_cross(feature, cells, out, bad)
                                         : decode_ids(feature, cells[feature.columns[0]], out, bad);
  if (good && feature.weights >= 0)
    good = decode_weights(feature, cells[static_cast<size_t>(feature.weights)], out, bad);
  if (good && feature.sequence) good = same_events(feature, static_cast<int64_t>(out.ids.size() - first), events, bad);
  if (!good) return false;
  if (has_weights_) out.weights.resize(out.ids.size(), 1.0f);
  if (feature.max_length > 0 && out.ids.size() - first > feature.max_length) {
    const auto length = static_cast<std::ptrdiff_t>(feature.max_length);
    const auto cut = [&](auto& list) {
      const auto begin = list.begin() + static_cast<std::ptrdiff_t>(first);
      if (feature.keep_last)
        list.erase(begin, list.end() - length);
      else
        list.erase(begin + length, list.end());
    };
    cut(out.ids);
    if (has_weights_) cut(out.weights);
  }
  check_ids(out);
  out.ends.push_back(static_cast<uint32_t>(out.ids.size()));
  return true;
}

bool RowDecoder::same_events(const Feature& feature, int64_t length, int64_t& events, BadRow& bad) const {
  if (events < 0) events = length;
  if (length == events) return true;
  bad.column = columns_[feature.columns[0]];
  bad.reason = fmt::format("a sequence of {} ids beside one of {}", length, events);
  return false;
}

bool RowDecoder::add_missing(const Feature& feature, size_t column, RowBlock& out, BadRow& bad) const {
  if (feature.missing == Missing::kValue) out.ids.push_back(table_row(xxh64({}), feature.num_rows));
  if (feature.missing != Missing::kBadRow) return true;
  bad.column = columns_[column];
  bad.reason = "the id is missing";
  return false;
}

bool RowDecoder::decode_cross(const Feature& feature, std::span<const Cell> cells, RowBlock& out, BadRow& bad) const {
  thread_local std::string joined;
  joined.clear();
  for (const size_t column : feature.columns) {
    std::array<char, 24> buffer;
    std::string_view text;
    if (cells[column].kind == Cell::Kind::kMissing) {
      if (feature.missing != Missing::kValue) return add_missing(feature, column, out, bad);
    } else if (!text_of(cells[column], buffer, text, bad.reason)) {
      bad.column = columns_[column];
      return false;
    }
    joined.append(text).push_back(kCrossSeparator);
  }
  joined.pop_back();
  out.ids.push_back(table_row(xxh64(joined), feature.num_rows));
  return true;
}

bool RowDecoder::decode_ids(const Feature& feature, const Cell& cell, RowBlock& out, BadRow& bad) const {
  const size_t column = feature.columns[0];
  if (cell.kind == Cell::Kind::kMissing) return add_missing(feature, column, out, bad);
  const bool good = for_each_value(cell, feature.separator, [&](const Cell& value) {
    return feature.hash ? add_hashed(feature, value, out, bad.reason) : add_integer(feature, value, out, bad.reason);
  });
  if (!good) bad.column = columns_[column];
  return good;
}

bool RowDecoder::add_hashed(const Feature& feature, const Cell& value, RowBlock& out, std::string& reason) {
  std::array<char, 24> buffer;
  std::string_view text;
  if (value.kind == Cell::Kind::kMissing) {
    reason = "an id of the list is missing";
    return false;
  }
  if (value.kind == Cell::Kind::kInteger) {
    out.ids.push_back(table_row(integer_key(value.integer), feature.num_rows));
    return true;
  }
  const bool known = value.kind == Cell::Kind::kText && value.key != nullptr;
  if (!known && !text_of(value, buffer, text, reason)) return false;
  out.ids.push_back(table_row(known ? *value.key : xxh64(text), feature.num_rows));
  return true;
}

bool RowDecoder::add_integer(const Feature& feature, const Cell& value, RowBlock& out, std::string& reason) {
  int64_t id = value.integer;
  if (value.kind == Cell::Kind::kMissing)
    reason = "an id of the list is missing";
  else if (value.kind == Cell::Kind::kText && !parse_number(*value.text, id))
    reason = shown(*value.text) + " is not an integer";
  else if (value.kind == Cell::Kind::kReal)
    reason = "a float is no id; write the column as integers";
  else if (feature.num_rows > 0 && static_cast<uint64_t>(id) >= feature.num_rows)
    reason = fmt::format("the id {} is out of range; the table has {} rows", id, feature.num_rows);
  else
    out.ids.push_back(id);
  return reason.empty();
}

bool RowDecoder::decode_weights(const Feature& feature, const Cell& cell, RowBlock& out, BadRow& bad) const {
  const size_t first = out.weights.size(), wanted = out.ids.size();
  const auto add = [&](const Cell& value) {
    double weight = 0;
    const Parsed parsed = number_of(value, weight, bad.reason);
    if (parsed == Parsed::kMissing) bad.reason = "a weight is missing";
    out.weights.push_back(static_cast<float>(weight));
    return parsed == Parsed::kThere;
  };
  bool good = (cell.kind == Cell::Kind::kMissing && first == wanted) || for_each_value(cell, feature.separator, add);
  if (good && out.weights.size() != wanted) {
    bad.reason = fmt::format("{} weights for {} ids", out.weights.size() - first, wanted - first);
    good = false;
  }
  if (!good) bad.column = columns_[static_cast<size_t>(feature.weights)];
  return good;
}

}  // namespace dovetail
