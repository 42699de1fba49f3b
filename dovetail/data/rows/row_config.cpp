#include "dovetail/data/rows/row_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "dovetail/base/byte_size.h"
#include "dovetail/base/error.h"

namespace dovetail::data {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

void check_delimiter(const std::string& text, const char* key) {
  user_check(text.size() == 1 && text != "\n" && text != "\r" && text != "\"",
             "rows.{} is \"{}\"; give one character, not a quote or the end of a line", key,
             printable(text));
}

void check_feature(const SparseConfig& feature) {
  const std::string name = feature.feature_name();
  user_check(!feature.columns.empty(), "rows.sparse: the feature \"{}\" has no columns", name);
  const bool cross = feature.columns.size() > 1;
  const bool list = !feature.separator.empty() || !feature.weights.empty() ||
                    feature.max_length > 0 || feature.sequence;
  user_check(!cross || feature.ids == "hash",
             "rows.sparse.{}: several columns make a hashed id; use ids = \"hash\"", name);
  user_check(!cross || !list,
             "rows.sparse.{}: a cross of columns is one id: leave out separator, weights, "
             "max_length, sequence",
             name);
  user_check(feature.max_rows == 0 || feature.num_rows == 0,
             "rows.sparse.{}: max_rows is for a table without a fixed vocabulary, but num_rows = "
             "{} gives it one; leave either out",
             name, feature.num_rows);
  user_check(feature.max_bytes.empty() || feature.max_rows > 0,
             "rows.sparse.{}: max_bytes caps a table without a fixed vocabulary, which has "
             "max_rows; give that, or leave max_bytes out",
             name);
  user_check(
      feature.max_bytes.empty() || parse_byte_size(feature.max_bytes),
      "rows.sparse.{}: max_bytes = \"{}\" is no size; write bytes with a unit, such as 64MiB", name,
      printable(feature.max_bytes));
  user_check(feature.pools() || feature.max_length > 0,
             "rows.sparse.{}: pooling = \"none\" gives the model the rows of max_length ids side "
             "by side. Give max_length, or another pooling",
             name);
  user_check(feature.ids == "hash" || feature.missing != "value",
             "rows.sparse.{}: missing = \"value\" hashes an empty text, but ids are integers; use "
             "\"empty\" or \"bad_row\"",
             name);
  user_check(feature.keep == "last" || feature.max_length > 0,
             "rows.sparse.{}: keep selects which ids of a list stay, but max_length keeps all. "
             "Give max_length, or leave keep out",
             name);
  if (!feature.separator.empty()) check_delimiter(feature.separator, "sparse.separator");
}

/// Checks that all sequences are cut alike, since they describe the same events.
void check_sequence(const SparseConfig& feature, const SparseConfig& first) {
  const std::string name = feature.feature_name();
  user_check(feature.max_length > 0,
             "rows.sparse.{}: a sequence has a longest length; give max_length", name);
  user_check(feature.missing != "value",
             "rows.sparse.{}: missing = \"value\" would make an event of a sequence that is not "
             "there; use \"empty\" or \"bad_row\"",
             name);
  user_check(feature.max_length == first.max_length && feature.keep == first.keep,
             "rows.sparse.{}: the sequences of a row describe the same events, but this one keeps "
             "the {} {} and {} the {} {}. Use the same max_length and keep",
             name, feature.keep, feature.max_length, first.feature_name(), first.keep,
             first.max_length);
}

void check_shared_table(const SparseConfig& feature, const RowsConfig& rows) {
  const std::string name = feature.feature_name();
  const int64_t index = rows.feature_index(feature.table);
  user_check(index >= 0,
             "rows.sparse.{}: table = \"{}\" is no feature; name the one whose table it shares",
             name, feature.table);
  const SparseConfig& owner = rows.sparse[static_cast<size_t>(index)];
  user_check(owner.table.empty() && &owner != &feature,
             "rows.sparse.{}: table = \"{}\" has no table of its own; name the feature that has",
             name, feature.table);
  user_check(feature.max_rows == owner.max_rows && feature.max_bytes == owner.max_bytes,
             "rows.sparse.{}: max_rows = {} and max_bytes = \"{}\", but \"{}\", whose table it "
             "shares, has {} and \"{}\"; use the same",
             name, feature.max_rows, feature.max_bytes, feature.table, owner.max_rows,
             owner.max_bytes);
  user_check(feature.num_rows == owner.num_rows && feature.ids == owner.ids,
             "rows.sparse.{}: its ids are {} for {} rows, but the ids of \"{}\", whose table it "
             "shares, are {} for {}. Use the same ids and num_rows",
             name, feature.ids, feature.num_rows, feature.table, owner.ids, owner.num_rows);
  // If only one of them pools, the table pools in that way.
  const bool alike = feature.pooling == owner.pooling || !feature.pools() ||
                     (!owner.pools() && feature.pooling.empty());
  user_check(feature.dim == owner.dim && alike,
             "rows.sparse.{}: dim = {} and pooling = \"{}\", but \"{}\", whose table it shares, "
             "has {} and \"{}\"; use the same",
             name, feature.dim, feature.pooling, feature.table, owner.dim, owner.pooling);
}

}  // namespace

std::string SparseConfig::feature_name() const {
  return name.empty() ? fmt::format("{}", fmt::join(columns, "_x_")) : name;
}

void DenseConfig::describe(Section& s) {
  s.value("columns", columns, "Columns of numbers").required();
  s.value("missing", missing,
          "Treatment of a missing number (an empty field, NA, NaN, null, None, <NA>, a null of "
          "Parquet). zero: use 0. mean: use the mean of the training rows. bad_row: treat its row "
          "as bad")
      .choices({"zero", "mean", "bad_row"});
  s.value("transform", transform,
          "Function of each number. log1p: ln(1 + max(x, 0)). standard: (x - mean) / deviation, "
          "both computed over the training rows")
      .choices({"none", "log1p", "standard"});
}

void SparseConfig::describe(Section& s) {
  s.value("name", name, "Name of the feature; default: its column, or its columns joined by _x_");
  s.value("columns", columns,
          "Column of ids; a list in Parquet gives several ids. Several columns are combined into "
          "one id (a cross)")
      .required();
  s.value("ids", ids,
          "Conversion of ids to rows. hash: XXH64 of the id's text, modulo num_rows if num_rows is "
          "not 0. A float of Parquet that is an integer has the text of the integer. integer: the "
          "column holds row numbers, or keys if num_rows is 0. A float such as 7.0 is the integer")
      .choices({"hash", "integer"});
  s.value("num_rows", num_rows,
          "Rows of the table; 0: 64-bit keys, for a table without a fixed vocabulary")
      .unit("rows")
      .range(0, 1e12);
  s.value(
       "max_rows", max_rows,
       "Maximum rows of a table with num_rows = 0. [embedding.dynamic] decides which ids get a row")
      .unit("rows")
      .range(0, 2147483646);
  s.value("max_bytes", max_bytes,
          "Maximum memory of a table with max_rows on all ranks, such as 64MiB. It covers rows, "
          "their optimizer state, the map of ids and max_candidates. The smaller limit of max_rows "
          "and max_bytes applies. Empty: no limit");
  s.value("separator", separator, "Character between the ids of a text; empty: the text is one id");
  s.value("weights", weights,
          "Column with a weight for each id, in the same form as the ids; empty: each weight is 1");
  s.value("max_length", max_length, "Maximum number of ids to keep from a list; 0: all")
      .unit("ids")
      .range(0, 1e9);
  s.value("keep", keep, "End of the list that max_length keeps").choices({"last", "first"});
  s.value("sequence", sequence,
          "The ids are a sequence of events, at most max_length long. Position i of all sequences "
          "of a row is one event. A row whose sequences differ in length is bad. The models din, "
          "dien and can read each event, other models pool events");
  s.value("table", table,
          "Feature whose table this one shares, with the same ids and num_rows; empty: a table of "
          "its own");
  s.value("missing", missing,
          "Treatment of an empty text or a null. empty: no id. value: the id of an empty text. "
          "bad_row: treat the row as bad")
      .choices({"empty", "value", "bad_row"});
  s.value("dim", dim,
          "Elements of an embedding. 0: recommender.dim. dlrm, deepfm, sequences that a model "
          "reads and features that share their tables require recommender.dim")
      .range(0, 65536);
  s.value("pooling", pooling,
          "Pooling of a bag's rows: their sum or mean. none: max_length rows side by side, padded "
          "with zeros. Empty: embedding.pooling")
      .choices({"", "sum", "mean", "none"});
}

void RowsConfig::describe(Section& s) {
  s.value("files", files,
          "Files and globs (* ? [...]), read in this order. Files of one glob are read in the "
          "order of their names");
  s.value("format", format,
          "auto: Parquet by its first bytes, text by extension, any other text by its first lines. "
          "Extensions are .tsv and .csv in any case, also before .gz, .zst or .bz2. Files packed "
          "by gzip, zstd or bzip2 and text in UTF-16 are read whatever their name")
      .choices({"auto", "parquet", "tsv", "csv"});
  s.value("delimiter", delimiter,
          "Character between fields; default: a tab for tsv, a comma for csv. With format = "
          "\"auto\" another one is found where that leaves the first line whole");
  s.value("decimal", decimal, "Mark before the fraction of a number in text").choices({".", ","});
  s.value("header", header, "The first line of each text file names its columns");
  s.value("columns", columns, "Column names for text files without a header");
  s.value("label", label,
          "Labels, one per task: a column with numbers from 0 to 1, or `column > number`, also "
          "with <, <=, >=, == or !=");
  s.value("missing_label", missing_label,
          "Treatment of a row with an empty label. drop: drop and count it. mask: keep it, with "
          "NaN for the label, if it has another label. bad_row: treat it as a bad row")
      .choices({"drop", "mask", "bad_row"});
  s.value("group", group, "Column that groups rows for GAUC, such as a user; empty: no groups");
  s.list("dense", dense, "Columns of numbers");
  s.list("sparse", sparse, "Features with ids: single, bags, sequences, crosses");
  s.value("day", day,
          "Column with each row's day, in rising order (20130131, 2013-01-31). The run reads the "
          "rows once, and evaluates on each day before it trains on it. Statistics of numbers come "
          "from the first day. A batch ends with its day. Empty: rows in any order, read several "
          "times, a share held out");
  s.value("validation_fraction", validation_fraction,
          "Share of the rows held out: the last rows in file order. Bad rows and rows without a "
          "label count as rows. Not used with rows.day")
      .range(0, 0.9);
  s.value("shuffle_window", shuffle_window,
          "Consecutive rows that are shuffled together; 1: file order")
      .unit("rows")
      .range(1, 1e9)
      .word("all", 0);
  s.value("bad_row", bad_row,
          "Treatment of a row with the wrong width, a bad number or an id out of range. error: "
          "stop. skip: leave the row out")
      .choices({"error", "skip"});
  s.value("max_bad_rows", max_bad_rows,
          "Maximum number of rows to skip with bad_row = \"skip\". More of them stop the run with "
          "an error")
      .unit("rows")
      .range(1, 1e12);
  s.value("threads", threads, "Decoding threads of each rank").range(1, 256);
  s.value("cache_bytes", cache_bytes,
          "Memory for decoded rows. If not all rows fit, each epoch decodes them anew")
      .unit("bytes")
      .range(0, 1e15);
}

int64_t RowsConfig::num_dense() const {
  int64_t columns = 0;
  for (const DenseConfig& entry : dense) columns += static_cast<int64_t>(entry.columns.size());
  return columns;
}

void RowsConfig::check() const {
  user_check(
      !files.empty(),
      "rows.files is empty; name the files, for example --set rows.files=data/flights.parquet");
  user_check(!label.empty(),
             "rows.label is empty; name the column to predict, for example label = \"clicked\"");
  for (const std::string& text : label) parse_label(text);
  user_check(!dense.empty() || !sparse.empty(),
             "rows has neither [[rows.dense]] nor [[rows.sparse]]: nothing to learn from; give at "
             "least one");
  user_check(header || !columns.empty(),
             "rows.header is false but rows.columns is empty; name the columns in order");
  user_check(!header || columns.empty(),
             "rows.columns is for text without a header; set rows.header = false or leave "
             "rows.columns out");
  user_check(missing_label != "mask" || label.size() > 1,
             "rows.missing_label = \"mask\" keeps rows with another label, but there is one; use "
             "\"drop\"");
  user_check(
      bad_row == "skip" || max_bad_rows == RowsConfig().max_bad_rows,
      "rows.max_bad_rows counts skipped rows, but rows.bad_row is \"error\"; set it to \"skip\"");
  user_check(!by_day() || validation_fraction == RowsConfig().validation_fraction,
             "rows.validation_fraction = {} does nothing with rows.day = \"{}\". Each day is held "
             "out until the run is evaluated on it. Leave the key out",
             validation_fraction, day);
  if (!delimiter.empty()) check_delimiter(delimiter, "delimiter");
  std::set<std::string> names;
  const SparseConfig* first_sequence = nullptr;
  for (const SparseConfig& feature : sparse) {
    check_feature(feature);
    user_check(names.insert(feature.feature_name()).second,
               "rows.sparse: two features are named \"{}\"; give one of them another name",
               feature.feature_name());
    if (!feature.table.empty()) check_shared_table(feature, *this);
    if (!feature.sequence) continue;
    if (first_sequence == nullptr) first_sequence = &feature;
    check_sequence(feature, *first_sequence);
  }
}

int64_t RowsConfig::feature_index(std::string_view name) const {
  const auto found = std::ranges::find(sparse, name, &SparseConfig::feature_name);
  return found == sparse.end() ? -1 : found - sparse.begin();
}

double LabelExpression::value(double number) const {
  switch (comparison) {
    case Comparison::kNone:
      return number;
    case Comparison::kGreater:
      return number > threshold ? 1 : 0;
    case Comparison::kGreaterEqual:
      return number >= threshold ? 1 : 0;
    case Comparison::kLess:
      return number < threshold ? 1 : 0;
    case Comparison::kLessEqual:
      return number <= threshold ? 1 : 0;
    case Comparison::kEqual:
      return number == threshold ? 1 : 0;
    case Comparison::kNotEqual:
      return number != threshold ? 1 : 0;
  }
  DOVETAIL_CHECK(false, "a comparison of labels");
}

LabelExpression parse_label(const std::string& text) {
  using Comparison = LabelExpression::Comparison;
  constexpr std::pair<std::string_view, Comparison> kSigns[] = {
      {">=", Comparison::kGreaterEqual}, {"<=", Comparison::kLessEqual}, {"==", Comparison::kEqual},
      {"!=", Comparison::kNotEqual},     {">", Comparison::kGreater},    {"<", Comparison::kLess}};
  LabelExpression label;
  const size_t at =
      std::min({text.find_first_of("<>"), text.find("=="), text.find("!="), text.size()});
  const std::string_view rest = std::string_view(text).substr(at);
  const auto* const sign = std::ranges::find_if(
      kSigns, [&](const auto& known) { return rest.starts_with(known.first); });
  label.column = trimmed(std::string_view(text).substr(0, at));
  bool valid = !label.column.empty() && !label.column.ends_with('=');
  if (sign != std::end(kSigns)) {
    label.comparison = sign->second;
    const std::string_view number = trimmed(rest.substr(sign->first.size()));
    const auto parsed =
        std::from_chars(number.data(), number.data() + number.size(), label.threshold);
    valid = valid && parsed.ec == std::errc() && parsed.ptr == number.data() + number.size() &&
            std::isfinite(label.threshold);
  }
  if (!valid)
    throw UserError(fmt::format("rows.label: \"{}\" is neither a column nor `column > number`; the "
                                "comparisons are <, <=, >, >=, == or !=",
                                printable(text)),
                    "for example label = [\"arr_delay > 15\"]");
  return label;
}

}  // namespace dovetail::data
