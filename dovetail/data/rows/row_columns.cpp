// Implementation of RowDecoder::decode_columns. It processes a tile of rows column by column.
// Numbers and ids are written to small row-major arrays, and rows are then copied from there.
// `decode` alone defines the meaning of a row: it takes over each row with anything unusual.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/base/hash.h"
#include "dovetail/data/rows/cell_values.h"
#include "dovetail/data/rows/row_decoder.h"

namespace dovetail::data {
namespace {

/// Rows per tile; with 26 ids a row, the ids take half of an L1 cache.
constexpr size_t kTile = 256;

/// Returns std::log1p of the whole numbers below 1024, which counts mostly are. Computed at run
/// time: a compiler that folds constants may round differently from libm.
const std::vector<double>& whole_logs() {
  static const std::vector<double> logs = [] {
    std::vector<double> all(1024);
    for (size_t i = 0; i < all.size(); ++i) all[i] = std::log1p(static_cast<double>(i));
    return all;
  }();
  return logs;
}

double log1p_of(double number, std::span<const double> whole) {
  if (number > 0 && number < static_cast<double>(whole.size())) {
    const auto i = static_cast<size_t>(static_cast<int64_t>(number));
    if (static_cast<double>(static_cast<int64_t>(number)) == number) return whole[i];
  }
  return number > 0 ? std::log1p(number) : std::max(number, 0.0);
}

bool is_number(const ColumnValues& column) {
  return !column.is_list && column.kind != ColumnValues::Kind::kText;
}

/// Calls `take(i, there, number)` for each of `rows` rows.
template <class Take>
void take_numbers(const ColumnValues& column, size_t first, size_t rows, Take&& take) {
  const uint8_t* const present = column.value_present.data() + first;
  if (column.kind == ColumnValues::Kind::kInteger) {
    const int64_t* const integers = column.integers.data() + first;
    for (size_t i = 0; i < rows; ++i) take(i, present[i] != 0, static_cast<double>(integers[i]));
  } else {
    const double* const reals = column.reals.data() + first;
    for (size_t i = 0; i < rows; ++i) take(i, present[i] != 0 && !std::isnan(reals[i]), reals[i]);
  }
}

}  // namespace

class RowDecoder::ColumnTiles {
 public:
  ColumnTiles(const RowDecoder& decoder, std::span<const ColumnValues> columns)
      : decoder_(decoder),
        columns_(columns),
        cells_(columns.size()),
        plain_(decoder.features_.size()) {
    for (size_t f = 0; f < plain_.size(); ++f) prepare(decoder.features_[f], plain_[f]);
    const auto number = [&](const auto& entry) { return is_number(columns_[entry.column]); };
    const bool numbers =
        std::ranges::all_of(decoder.labels_, number) && std::ranges::all_of(decoder.dense_, number);
    by_row_ = !numbers;
    whole_ =
        decoder.group_ < 0 && decoder.day_ < 0 &&
        std::ranges::all_of(plain_, [](const Plain& plain) { return plain.column != nullptr; });
    labels_.resize(kTile * decoder.labels_.size());
    dense_.resize(kTile * decoder.dense_.size());
    ids_.resize(kTile * plain_.size());
    there_.resize(kTile * plain_.size());
  }

  void decode(int64_t first, int64_t rows, int64_t row, RowBlock& out) {
    for (int64_t done = 0; done < rows; done += kTile) {
      const auto at = static_cast<size_t>(first + done),
                 n = static_cast<size_t>(std::min<int64_t>(kTile, rows - done));
      special_.fill(by_row_ ? 1 : 0);
      if (!by_row_) take(at, n);
      append(at, n, row + done, out);
    }
  }

 private:
  /// Feature with one value per row, which is either valid or missing.
  struct Plain {
    const ColumnValues* column = nullptr;  ///< null: the feature is not of this kind
    std::vector<int64_t> word_ids;         ///< id of each word, or ids of False and True
    std::vector<uint8_t> word_there;       ///< for each word; 0: the empty word
    int64_t missing_id = 0;
  };

  void prepare(const Feature& feature, Plain& plain) {
    const ColumnValues& column = columns_[feature.columns[0]];
    const bool text = column.kind == ColumnValues::Kind::kText;
    if (feature.columns.size() > 1 || feature.weights >= 0 || feature.sequence || !feature.hash ||
        column.is_list || column.kind == ColumnValues::Kind::kReal ||
        (text && feature.separator != 0))
      return;
    plain.column = &column;
    plain.missing_id = table_row(xxh64({}), feature.num_rows);
    plain.word_ids.reserve(column.keys.size());
    for (const uint64_t key : column.keys)
      plain.word_ids.push_back(table_row(key, feature.num_rows));
    plain.word_there.reserve(column.words.size());
    for (const std::string_view word : column.words) plain.word_there.push_back(!word.empty());
    if (column.booleans)
      for (const bool value : {false, true})
        plain.word_ids.push_back(table_row(xxh64(boolean_text(value)), feature.num_rows));
  }

  /// Reads rows [first, first + n) into the arrays.
  void take(size_t first, size_t n) {
    const size_t labels = decoder_.labels_.size(), dense = decoder_.dense_.size();
    for (size_t l = 0; l < labels; ++l)
      take_label(decoder_.labels_[l], first, n, labels_.data() + l);
    for (size_t d = 0; d < dense; ++d) take_dense(decoder_.dense_[d], first, n, dense_.data() + d);
    for (size_t f = 0; f < plain_.size(); ++f)
      if (plain_[f].column != nullptr) take_ids(decoder_.features_[f], plain_[f], first, n, f);
  }

  void take_label(const Label& label, size_t first, size_t n, float* out) {
    const LabelExpression& expression = label.expression;
    take_numbers(columns_[label.column], first, n, [&](size_t i, bool there, double number) {
      const double label = expression.value(number);
      special_[i] |= !there || !std::isfinite(number) || !(label >= 0 && label <= 1);
      out[i * decoder_.labels_.size()] = static_cast<float>(label);
    });
  }

  void take_dense(const Dense& dense, size_t first, size_t n, double* out) {
    const std::span<const double> logs = whole_logs();
    take_numbers(columns_[dense.column], first, n, [&](size_t i, bool there, double number) {
      const bool finite = std::isfinite(number);
      if (!there) number = std::numeric_limits<double>::quiet_NaN();
      if (dense.log1p && there) number = log1p_of(number, logs);
      special_[i] |=
          there ? !finite || std::abs(number) > std::numeric_limits<float>::max() : dense.required;
      out[i * decoder_.dense_.size()] = number;
    });
  }

  void take_ids(const Feature& feature, const Plain& plain, size_t first, size_t n, size_t f) {
    const uint8_t* const present = plain.column->value_present.data() + first;
    const auto there = [&](size_t i) { return present[i]; };
    if (plain.column->kind == ColumnValues::Kind::kText) {
      const int32_t* const codes = plain.column->codes.data() + first;
      const int64_t* const word_ids = plain.word_ids.data();
      const uint8_t* const word_there = plain.word_there.data();
      take_ids(
          feature, plain, n, f, [&](size_t i) { return word_ids[codes[i]]; },
          [&](size_t i) -> uint8_t { return present[i] & word_there[codes[i]]; });
    } else if (plain.column->booleans) {
      const int64_t* const booleans = plain.column->integers.data() + first;
      take_ids(
          feature, plain, n, f,
          [&](size_t i) { return plain.word_ids[static_cast<size_t>(booleans[i])]; }, there);
    } else {
      const int64_t* const integers = plain.column->integers.data() + first;
      take_ids(
          feature, plain, n, f,
          [&](size_t i) { return table_row(integer_key(integers[i]), feature.num_rows); }, there);
    }
  }

  template <class IdOf, class PresentOf>
  void take_ids(const Feature& feature, const Plain& plain, size_t n, size_t f, IdOf&& id_of,
                PresentOf&& present_of) {
    const uint8_t absent = feature.missing == Missing::kValue ? 1 : 0,
                  bad = feature.missing == Missing::kBadRow;
    const int64_t missing_id = plain.missing_id;
    const size_t stride = plain_.size();
    int64_t* id = ids_.data() + f;
    uint8_t* there = there_.data() + f;
    for (size_t i = 0; i < n; ++i, id += stride, there += stride) {
      const int64_t known = id_of(i);
      const uint8_t present = present_of(i);
      *id = present != 0 ? known : missing_id;
      *there = present | absent;
      special_[i] |= bad & (present ^ 1);
    }
  }

  void append(size_t first, size_t n, int64_t row, RowBlock& out) {
    for (size_t i = 0; i < n;) {
      size_t end = i;
      while (whole_ && end < n && special_[end] == 0) ++end;
      if (end > i) {
        append_whole(i, end, out);
        i = end;
        continue;
      }
      if (special_[i] != 0 ||
          !append_row(static_cast<int64_t>(first), i, row + static_cast<int64_t>(i), out)) {
        for (size_t c = 0; c < columns_.size(); ++c)
          set_row_cell(columns_[c], static_cast<int64_t>(first + i), cells_[c]);
        decoder_.decode(cells_, row + static_cast<int64_t>(i), out);
      }
      ++i;
    }
  }

  void append_numbers(size_t begin, size_t end, RowBlock& out) const {
    const auto part = [&](const auto& from, size_t width, auto& to) {
      to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin * width),
                from.begin() + static_cast<std::ptrdiff_t>(end * width));
    };
    part(labels_, decoder_.labels_.size(), out.labels);
    part(dense_, decoder_.dense_.size(), out.dense);
  }

  /// Appends rows [begin, end) of the arrays, if all features are plain.
  void append_whole(size_t begin, size_t end, RowBlock& out) const {
    append_numbers(begin, end, out);
    const size_t all = (end - begin) * plain_.size(), start = begin * plain_.size(),
                 before = out.ends.size();
    size_t next = out.ids.size();
    out.ids.resize(next + all);
    out.ends.resize(before + all);
    check_ids(out);
    int64_t* const ids = out.ids.data();
    for (size_t i = 0; i < all; ++i) {
      ids[next] = ids_[start + i];
      next += there_[start + i];
      out.ends[before + i] = static_cast<uint32_t>(next);
    }
    out.ids.resize(next);
    out.num_rows += static_cast<int64_t>(end - begin);
  }

  /// Appends row `i` of the arrays, number `row`, and reads the other features from its cells.
  /// Returns false and leaves `out` unchanged if something is not valid.
  bool append_row(int64_t first, size_t i, int64_t row, RowBlock& out) {
    const size_t before = out.ids.size();
    append_numbers(i, i + 1, out);
    const auto set_cell = [&](int64_t c) {
      const auto column = static_cast<size_t>(c);
      if (c >= 0) set_row_cell(columns_[column], first + static_cast<int64_t>(i), cells_[column]);
    };
    BadRow bad{row, {}, {}};
    int64_t events = -1;
    bool good = true;
    for (size_t f = 0; good && f < plain_.size(); ++f) {
      const Feature& feature = decoder_.features_[f];
      if (plain_[f].column == nullptr) {
        for (const size_t column : feature.columns) set_cell(static_cast<int64_t>(column));
        set_cell(feature.weights);
        good = decoder_.decode_feature(feature, cells_, events, out, bad);
        continue;
      }
      const size_t at = i * plain_.size() + f;
      if (there_[at] != 0) out.ids.push_back(ids_[at]);
      if (decoder_.has_weights_) out.weights.resize(out.ids.size(), 1.0f);
      out.ends.push_back(static_cast<uint32_t>(out.ids.size()));
    }
    set_cell(decoder_.group_);
    set_cell(decoder_.day_);
    good = good && decoder_.decode_group(cells_, out, bad) && decoder_.decode_day(cells_, out, bad);
    if (good)
      ++out.num_rows;
    else
      decoder_.take_back(before, out);
    return good;
  }

  const RowDecoder& decoder_;
  std::span<const ColumnValues> columns_;
  std::vector<Cell> cells_;
  std::vector<Plain> plain_;
  /// A label or a number is a text or a list: `decode` takes every row.
  bool by_row_ = false;
  bool whole_ = false;  ///< no feature, group or day needs a row's cells
  std::array<uint8_t, kTile> special_{};
  std::vector<float> labels_;
  std::vector<double> dense_;
  std::vector<int64_t> ids_;
  std::vector<uint8_t> there_;
};

void RowDecoder::decode_columns(std::span<const ColumnValues> columns, int64_t first, int64_t rows,
                                int64_t row, RowBlock& out) const {
  ColumnTiles(*this, columns).decode(first, rows, row, out);
}

}  // namespace dovetail::data
