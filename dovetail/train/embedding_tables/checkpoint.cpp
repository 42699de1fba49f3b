#include "dovetail/train/embedding_tables/checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/comm/collective.h"
#include "dovetail/train/embedding_tables/hashed.h"

namespace dovetail::train {
namespace {

constexpr std::string_view kTables = "embedding.";

struct Names {
  std::string weight, state, rows;
};

/// Returns the names of the tensors of a table, or of its piece with this suffix.
Names names_of(const embedding::TableSpec& table, const std::string& suffix = "") {
  const std::string prefix = fmt::format("{}{}.", kTables, table.name);
  return {.weight = prefix + "weight" + suffix,
          .state = prefix + "state" + suffix,
          .rows = prefix + "rows" + suffix};
}

/// Maximum number of blocks of a table that are searched at once for marked rows.
constexpr int64_t kBlocksSearched = 16;

/// Returns the bytes of a row and its state.
int64_t record_bytes(const embedding::PackSpec& spec, int64_t t) {
  const embedding::TableSpec& table = spec.tables[static_cast<size_t>(t)];
  return embedding::row_bytes(spec.row_dtype, table.dim) +
         embedding::state_per_row(spec, t) * static_cast<int64_t>(sizeof(float));
}

/// Returns the tensors that store `rows` rows of a table or of a piece.
std::vector<io::StreamedTensor> tensors_of(const embedding::PackSpec& spec, int64_t t,
                                           const std::string& suffix, embedding::RowSet which,
                                           int64_t rows) {
  const embedding::TableSpec& table = spec.tables[static_cast<size_t>(t)];
  const Names names = names_of(table, suffix);
  const std::string numbers = which == embedding::RowSet::kAll ? "" : names.rows;
  std::vector<io::StreamedTensor> tensors = {
      {names.weight,
       embedding::stored_type(spec.row_dtype),
       {rows, embedding::stored_width(spec.row_dtype, table.dim)},
       numbers}};
  if (const int64_t width = embedding::state_per_row(spec, t); width > 0)
    tensors.push_back({names.state, at::kFloat, {rows, width}, numbers});
  if (!numbers.empty()) tensors.push_back({numbers, at::kLong, {rows}});
  return tensors;
}

/// Throws UserError unless the row numbers ascend and exist in the table.
void check_numbers(const at::Tensor& rows, const embedding::TableSpec& table) {
  if (rows.numel() == 0) return;
  const auto* first = rows.const_data_ptr<int64_t>();
  const auto* last = first + rows.numel() - 1;
  user_check(*first >= 0 && *last < table.rows &&
                 std::adjacent_find(first, last + 1, std::greater_equal<>()) == last + 1,
             "the checkpoint's rows of table \"{}\" are not ascending numbers below {}", table.name,
             table.rows);
}

/// Throws UserError unless the full checkpoint `full` has rows and state of a table, or of its
/// piece with this suffix. Removes their names from `others`.
void check_table(const embedding::PackSpec& spec, int64_t t, const std::string& suffix,
                 const io::StoredCheckpoint::Link& full, std::set<std::string>& others) {
  const auto take = [&](const std::string& name) {
    user_check(others.erase(name) > 0 && full.files.contains(name),
               "the checkpoint lacks the tensor \"{}\" of this model", name);
  };
  const embedding::TableSpec& table = spec.tables[static_cast<size_t>(t)];
  if (table.hashed) {
    for (const std::string& name : hashed_tensors(spec, t)) take(name + suffix);
    return;
  }
  const Names names = names_of(table, suffix);
  const bool whole = suffix.empty() && !full.rows_of.contains(names.weight);
  const auto numbers = full.files.find(names.rows);
  user_check(whole || numbers != full.files.end(),
             "the checkpoint lacks the tensor \"{}\" of this model", names.rows);
  const int64_t rows = whole ? table.rows : numbers->second->shape(names.rows).at(0);
  const auto which = whole ? embedding::RowSet::kAll : embedding::RowSet::kUpdated;
  for (const io::StreamedTensor& tensor : tensors_of(spec, t, suffix, which, rows)) {
    take(tensor.name);
    const io::SafetensorsFile& file = *full.files.at(tensor.name);
    const std::vector<int64_t> shape = file.shape(tensor.name);
    const at::ScalarType dtype = file.dtype(tensor.name);
    user_check(shape == tensor.shape && dtype == tensor.dtype,
               "the checkpoint's \"{}\" is ({}) {}, but the table is ({}) {}, as "
               "embedding.row_dtype = \"{}\" has it",
               tensor.name, fmt::join(shape, ", "), c10::toString(dtype),
               fmt::join(tensor.shape, ", "), c10::toString(tensor.dtype),
               embedding::name(spec.row_dtype));
  }
}

/// Throws UserError unless the checkpoint has rows and state of exactly these tables.
void check_tables(const embedding::PackSpec& spec, const io::StoredCheckpoint& from) {
  const io::StoredCheckpoint::Link& full = from.links().front();
  std::set<std::string> others;
  for (const std::string& name : from.names())
    if (is_of_table(name)) others.insert(name);
  for (int64_t t = 0; t < std::ssize(spec.tables); ++t) {
    const std::string weight = names_of(spec.tables[static_cast<size_t>(t)]).weight;
    for (const std::string& suffix : piece_suffixes(full.files, weight))
      check_table(spec, t, suffix, full, others);
  }
  if (!others.empty())
    throw UserError(
        fmt::format("the checkpoint's \"{}\" is not a table of this model", *others.begin()));
}

/// Reads rows [first, first + count) of the part of a table, or of its piece with this suffix, that
/// a link stores. Throws UserError for row numbers that the table does not have.
embedding::TableRows read_block(const io::StoredCheckpoint::Link& link,
                                const embedding::TableSpec& table, const std::string& suffix,
                                int64_t first, int64_t count) {
  const Names names = names_of(table, suffix);
  const auto read = [&](const std::string& name) {
    const auto file = link.files.find(name);
    return file == link.files.end() ? at::Tensor() : file->second->read_rows(name, first, count);
  };
  const bool whole = !link.rows_of.contains(names.weight);
  embedding::TableRows found = {
      .rows = whole ? at::arange(first, first + count, at::kLong) : read(names.rows),
      .contents = {.weight = read(names.weight), .state = read(names.state)}};
  check_numbers(found.rows, table);
  return found;
}

/// Returns the number of rows that each link stores for each table of `tables`: a list with one
/// number for each piece. Tables without a source have an empty list.
nlohmann::json rows_in(const embedding::PackSpec& tables, const StoredTables& stored,
                       const io::StoredCheckpoint& from) {
  auto links = nlohmann::json::array();
  for (const io::StoredCheckpoint::Link& link : from.links()) {
    auto rows = nlohmann::json::array();
    for (size_t t = 0; t < tables.tables.size(); ++t) {
      const int64_t source = stored.sources[t].table;
      auto pieces = nlohmann::json::array();
      if (source >= 0) {
        const std::string name = names_of(stored.spec.tables[static_cast<size_t>(source)]).weight;
        for (const std::string& suffix : piece_suffixes(link.files, name)) {
          const auto weight = link.files.find(name + suffix);
          user_check(weight != link.files.end(), "the checkpoint of step {} lacks \"{}{}\"",
                     link.step, name, suffix);
          pieces.push_back(weight->second->shape(weight->first)[0]);
        }
      }
      rows.push_back(std::move(pieces));
    }
    links.push_back(rows);
  }
  return links;
}

/// Returns the keyed rows of a block of rows of a table with a fixed vocabulary.
embedding::KeyedRows keyed_rows(embedding::TableRows rows, int64_t steps) {
  const at::Tensor none = at::empty({0}, at::kLong);
  return {.known = {.keys = rows.rows,
                    .occurrences = at::ones_like(rows.rows),
                    .last_step = at::full_like(rows.rows, steps)},
          .weight = std::move(rows.contents.weight),
          .state = std::move(rows.contents.state),
          .candidates = {.keys = none, .occurrences = none, .last_step = none}};
}

/// Reads rows of link `link` of a checkpoint into the tables, block by block. `from` is null on
/// ranks other than 0.
class LinkReader {
 public:
  LinkReader(embedding::DistributedTables& tables, const StoredTables& stored,
             const io::StoredCheckpoint::Link* from)
      : tables_(tables), stored_(stored), from_(from) {}

  /// Reads the `rows` rows of a piece into a table with a fixed vocabulary.
  void read_rows(int64_t t, const std::string& suffix, int64_t rows) {
    const TableSource& source = source_of(t);
    for (int64_t first = 0; first < rows; first += block_of(t)) {
      embedding::TableRows found;
      int64_t stored_rows = 0;
      if (from_ != nullptr) {
        stored_rows = stored_table(t).rows;
        found =
            read_block(*from_, stored_table(t), suffix, first, std::min(block_of(t), rows - first));
        if (!source.state) found.contents.state = no_state(t, found.rows.numel());
      }
      for (int64_t copy = 0; copy < source.copies; ++copy) {
        embedding::TableRows placed = found;
        if (copy > 0 && from_ != nullptr) placed.rows = found.rows + copy * stored_rows;
        tables_.write_rows(t, placed);
      }
    }
  }

  /// Reads the `rows` keys of a piece into a hashed table.
  void read_keys(int64_t t, const std::string& suffix, int64_t rows) {
    const TableSource& source = source_of(t);
    const bool keyed = stored_.spec.tables[static_cast<size_t>(source.table)].hashed;
    if (keyed) {
      const auto read = [&](const auto& part) {
        return from_ == nullptr ? embedding::KeyedRows()
                                : part(stored_.spec, source.table, suffix, *from_);
      };
      tables_.remove_keys(t, read(read_removed));
      tables_.add_keys(t, read(read_candidates));
    }
    for (int64_t first = 0; first < rows; first += block_of(t)) {
      embedding::KeyedRows found;
      if (from_ != nullptr) {
        const int64_t count = std::min(block_of(t), rows - first);
        found = keyed ? train::read_keys(stored_.spec, source.table, suffix, *from_, first, count)
                      : keyed_rows(read_block(*from_, stored_table(t), suffix, first, count),
                                   stored_.steps);
        if (!source.state || !found.state.defined())
          found.state = no_state(t, found.known.keys.numel());
      }
      tables_.add_keys(t, found);
    }
  }

 private:
  const TableSource& source_of(int64_t t) const { return stored_.sources[static_cast<size_t>(t)]; }
  const embedding::TableSpec& stored_table(int64_t t) const {
    return stored_.spec.tables[static_cast<size_t>(source_of(t).table)];
  }
  int64_t block_of(int64_t t) const { return rows_in_block(tables_.spec(), t); }
  at::Tensor no_state(int64_t t, int64_t rows) const {
    return at::zeros({rows, embedding::state_per_row(tables_.spec(), t)}, at::kFloat);
  }

  embedding::DistributedTables& tables_;
  const StoredTables& stored_;
  const io::StoredCheckpoint::Link* from_;
};

/// Rows of a table that one rank writes.
struct WrittenRows {
  std::string suffix;  ///< piece_suffix; empty: the rows are the whole table
  std::function<int64_t(embedding::RowSet which)> count;
  std::function<embedding::TableRows(int64_t first, int64_t count, embedding::RowSet which)> read;
};

/// Writes rows of a table to `to`, block by block. Null: takes part in their exchange only.
void write_rows(const embedding::PackSpec& spec, int64_t t, io::CheckpointKind kind,
                const WrittenRows& from, io::StreamedTensors* to) {
  const embedding::TableSpec& table = spec.tables[static_cast<size_t>(t)];
  auto which =
      kind == io::CheckpointKind::kFull ? embedding::RowSet::kUpdated : embedding::RowSet::kChanged;
  int64_t rows = from.count(which);
  const int64_t bytes = record_bytes(spec, t),
                numbered_bytes = bytes + static_cast<int64_t>(sizeof(int64_t));
  if (from.suffix.empty() && which == embedding::RowSet::kUpdated &&
      rows * numbered_bytes >= table.rows * bytes) {
    which = embedding::RowSet::kAll;
    rows = table.rows;
  }
  if (to != nullptr) to->begin(tensors_of(spec, t, from.suffix, which, rows));
  // Few marked rows are usually far apart, so that a block of them spans many rows.
  const int64_t block =
      rows_in_block(spec, t) *
      std::clamp<int64_t>(table.rows / std::max<int64_t>(1, rows), 1, kBlocksSearched);
  for (int64_t first = 0; first < table.rows; first += block) {
    const embedding::TableRows found = from.read(first, std::min(block, table.rows - first), which);
    if (to == nullptr || found.rows.numel() == 0) continue;
    std::vector<at::Tensor> tensors = {found.contents.weight};
    if (found.contents.state.defined()) tensors.push_back(found.contents.state);
    if (which != embedding::RowSet::kAll) tensors.push_back(found.rows);
    to->append(tensors);
  }
}

}  // namespace

bool is_of_table(const std::string& tensor) { return tensor.starts_with(kTables); }

void save_tables(const embedding::DistributedTables& tables, io::CheckpointKind kind,
                 TableWriters writers, io::StreamedTensors* to) {
  using embedding::RowSet;
  for (int64_t t = 0; t < std::ssize(tables.spec().tables); ++t) {
    if (tables.is_hashed(t)) continue;
    const bool pieces = writers == TableWriters::kHolders && tables.cut_by_rows(t);
    const int64_t writer = writers == TableWriters::kRankZero ? 0 : tables.saving_rank(t);
    io::StreamedTensors* const own = pieces || tables.rank() == writer ? to : nullptr;
    WrittenRows rows;
    if (writers == TableWriters::kRankZero || tables.cut_by_columns(t)) {
      rows.count = [&](RowSet which) { return tables.num_rows(t, which); };
      rows.read = [&](int64_t first, int64_t count, RowSet which) {
        return tables.read_rows(t, first, count, which, writer);
      };
    } else {
      if (own == nullptr) continue;
      if (pieces) rows.suffix = piece_suffix(tables.rank(), tables.plan().ranks);
      rows.count = [&](RowSet which) { return tables.num_own_rows(t, which); };
      rows.read = [&](int64_t first, int64_t count, RowSet which) {
        return tables.own_rows(t, first, count, which);
      };
    }
    write_rows(tables.spec(), t, kind, rows, own);
  }
}

void complete_tables(const embedding::PackSpec& spec, std::map<std::string, at::Tensor>& tensors) {
  join_pieces(spec, tensors);
  for (const embedding::TableSpec& table : spec.tables) {
    const Names names = names_of(table);
    auto numbers = tensors.extract(names.rows);
    if (numbers.empty()) continue;
    const at::Tensor rows = std::move(numbers.mapped());
    check_numbers(rows, table);
    const std::vector<int64_t> shape = {rows.numel(),
                                        embedding::stored_width(spec.row_dtype, table.dim)};
    user_check(tensors.at(names.weight).sizes() == shape,
               "the checkpoint's \"{}\" is ({}), but the table is ({})", names.weight,
               fmt::join(tensors.at(names.weight).sizes(), ", "), fmt::join(shape, ", "));
    const embedding::InitialRows initial = embedding::initial_rows(spec.seed, table);
    const int64_t bytes = embedding::row_bytes(spec.row_dtype, table.dim);
    at::Tensor weight = at::empty({table.rows, embedding::stored_width(spec.row_dtype, table.dim)},
                                  embedding::stored_type(spec.row_dtype));
    auto* const first = static_cast<char*>(weight.mutable_data_ptr());
    for (int64_t row = 0; row < table.rows; ++row)
      initial.store(spec.row_dtype, static_cast<uint64_t>(row), first + row * bytes);
    tensors[names.weight] = weight.index_copy_(0, rows, tensors.at(names.weight));
    if (const auto state = tensors.find(names.state); state != tensors.end())
      state->second =
          at::zeros({table.rows, state->second.size(1)}).index_copy_(0, rows, state->second);
  }
}

void load_tables(embedding::DistributedTables& tables, const io::StoredCheckpoint* from,
                 comm::Group& group) {
  StoredTables same{.spec = tables.spec(), .sources = {}};
  for (int64_t t = 0; t < std::ssize(same.spec.tables); ++t) same.sources.push_back({.table = t});
  load_tables(tables, same, from, group);
}

void load_tables(embedding::DistributedTables& tables, const StoredTables& stored,
                 const io::StoredCheckpoint* from, comm::Group& group) {
  nlohmann::json links;
  comm::on_rank_zero(group, "restoring the tables", [&] {
    check_tables(stored.spec, *from);
    links = rows_in(tables.spec(), stored, *from);
  });
  links = comm::broadcast_json(group, links);
  for (size_t link = 0; link < links.size(); ++link) {
    LinkReader reader(tables, stored, from == nullptr ? nullptr : &from->links()[link]);
    for (int64_t t = 0; t < std::ssize(tables.spec().tables); ++t) {
      if (stored.sources[static_cast<size_t>(t)].table < 0) continue;
      const auto rows = links[link][static_cast<size_t>(t)].get<std::vector<int64_t>>();
      if (link == 0 && tables.is_hashed(t)) tables.clear_keys(t);
      for (int64_t piece = 0; piece < std::ssize(rows); ++piece) {
        const std::string suffix = rows.size() == 1 ? "" : piece_suffix(piece, std::ssize(rows));
        const int64_t of_piece = rows[static_cast<size_t>(piece)];
        if (tables.is_hashed(t)) {
          reader.read_keys(t, suffix, of_piece);
        } else {
          reader.read_rows(t, suffix, of_piece);
        }
      }
    }
  }
}

}  // namespace dovetail::train
