#include <fmt/format.h>

#include <array>

#include "dovetail/base/error.h"
#include "dovetail/base/hash.h"
#include "dovetail/data/rows/cell_values.h"
#include "dovetail/data/rows/row_decoder.h"

/// Decodes the ids of a row, feature by feature, and their weights.
namespace dovetail::data {
namespace {

constexpr char kCrossSeparator = '\x1f';

/// Parses a number of int64 or uint64 (its bits are the key), a whole float, or True or False.
bool parse_id(std::string_view text, char decimal, int64_t& id) {
  uint64_t bits = 0;
  double truth = 0;
  if (parse_number(text, id) || is_whole(text, decimal, id)) return true;
  if (parse_number(text, bits))
    id = static_cast<int64_t>(bits);
  else if (is_truth(text, truth))
    id = static_cast<int64_t>(truth);
  else
    return false;
  return true;
}

}  // namespace

int64_t RowDecoder::table_row(uint64_t key, uint64_t num_rows) {
  return static_cast<int64_t>(num_rows == 0 ? key : key % num_rows);
}

bool RowDecoder::decode_feature(const Feature& feature, std::span<const Cell> cells,
                                int64_t& events, RowBlock& out, BadRow& bad) const {
  const size_t first = out.ids.size();
  bool good = feature.columns.size() > 1 ? decode_cross(feature, cells, out, bad)
                                         : decode_ids(feature, cells[feature.columns[0]], out, bad);
  if (good && feature.weights >= 0)
    good = decode_weights(feature, cells[static_cast<size_t>(feature.weights)], out, bad);
  if (good && feature.sequence)
    good = same_events(feature, static_cast<int64_t>(out.ids.size() - first), events, bad);
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

bool RowDecoder::same_events(const Feature& feature, int64_t length, int64_t& events,
                             BadRow& bad) const {
  if (events < 0) events = length;
  if (length == events) return true;
  bad.column = columns_[feature.columns[0]];
  bad.reason = fmt::format("a sequence of {} ids beside one of {}", length, events);
  return false;
}

bool RowDecoder::add_missing(const Feature& feature, size_t column, RowBlock& out,
                             BadRow& bad) const {
  if (feature.missing == Missing::kValue) out.ids.push_back(table_row(xxh64({}), feature.num_rows));
  if (feature.missing != Missing::kBadRow) return true;
  bad.column = columns_[column];
  bad.reason = "the id is missing";
  return false;
}

bool RowDecoder::decode_cross(const Feature& feature, std::span<const Cell> cells, RowBlock& out,
                              BadRow& bad) const {
  thread_local std::string joined;
  joined.clear();
  for (const size_t column : feature.columns) {
    std::array<char, 24> buffer;
    std::string_view text;
    if (is_missing(cells[column])) {
      if (feature.missing != Missing::kValue) return add_missing(feature, column, out, bad);
    } else if (!text_of(cells[column], buffer, text, bad.reason)) {
      bad.column = columns_[column];
      return false;
    }
    note_form(column, cells[column], out);
    joined.append(text).push_back(kCrossSeparator);
  }
  joined.pop_back();
  out.ids.push_back(table_row(xxh64(joined), feature.num_rows));
  return true;
}

bool RowDecoder::decode_ids(const Feature& feature, const Cell& cell, RowBlock& out,
                            BadRow& bad) const {
  const size_t column = feature.columns[0];
  if (is_missing(cell)) return add_missing(feature, column, out, bad);
  const bool good = for_each_value(cell, feature.separator, [&](const Cell& value) {
    if (!feature.hash) return add_integer(feature, value, out, bad.reason);
    note_form(column, value, out);
    return add_hashed(feature, value, out, bad.reason);
  });
  if (!good) bad.column = columns_[column];
  return good;
}

void RowDecoder::note_form(size_t column, const Cell& value, RowBlock& out) const {
  if (value.kind != Cell::Kind::kText || value.key != nullptr || value.text->empty()) return;
  out.id_forms.resize(columns_.size());
  uint8_t& forms = out.id_forms[column];
  int64_t integer = 0;
  if ((forms & RowBlock::kOtherText) == 0)
    forms |=
        is_whole(*value.text, decimal_, integer) ? RowBlock::kWholeFloat : RowBlock::kOtherText;
}

bool RowDecoder::add_hashed(const Feature& feature, const Cell& value, RowBlock& out,
                            std::string& reason) {
  std::array<char, 24> buffer;
  std::string_view text;
  if (is_missing(value)) {
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

bool RowDecoder::add_integer(const Feature& feature, const Cell& value, RowBlock& out,
                             std::string& reason) const {
  int64_t id = value.integer;
  if (is_missing(value))
    reason = "an id of the list is missing";
  else if (value.kind == Cell::Kind::kText && !parse_id(*value.text, decimal_, id))
    reason = shown(*value.text) + " is not an integer";
  else if (value.kind == Cell::Kind::kReal && !is_whole(value.real, id))
    reason = fmt::format("the float {} is no id; write the column as integers", value.real);
  else if (feature.num_rows > 0 && static_cast<uint64_t>(id) >= feature.num_rows)
    reason =
        fmt::format("the id {} is out of range; the table has {} rows",
                    value.kind == Cell::Kind::kText ? printable(*value.text) : std::to_string(id),
                    feature.num_rows);
  else
    out.ids.push_back(id);
  return reason.empty();
}

bool RowDecoder::decode_weights(const Feature& feature, const Cell& cell, RowBlock& out,
                                BadRow& bad) const {
  const size_t first = out.weights.size(), wanted = out.ids.size();
  const auto add = [&](const Cell& value) {
    double weight = 0;
    const Parsed parsed = number_of(value, decimal_, weight, bad.reason);
    if (parsed == Parsed::kMissing) bad.reason = "a weight is missing";
    if (parsed != Parsed::kThere || !fits_float32(weight, bad.reason)) return false;
    out.weights.push_back(static_cast<float>(weight));
    return true;
  };
  bool good = (is_missing(cell) && first == wanted) || for_each_value(cell, feature.separator, add);
  if (good && out.weights.size() != wanted) {
    bad.reason = fmt::format("{} weights for {} ids", out.weights.size() - first, wanted - first);
    good = false;
  }
  if (!good) bad.column = columns_[static_cast<size_t>(feature.weights)];
  return good;
}

}  // namespace dovetail::data
