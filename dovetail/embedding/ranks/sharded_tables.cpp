#include "dovetail/embedding/ranks/sharded_tables.h"

#include <ATen/ATen.h>

#include <limits>
#include <sstream>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::embedding {

namespace {

/// Returns the first line of `a` that is not the same in `b`, as both have it.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  std::string line_a, line_b;
  do {
    line_a.clear();
    line_b.clear();
    std::getline(lines_a, line_a);
    std::getline(lines_b, line_b);
  } while (line_a == line_b && (lines_a || lines_b));
  return {line_a, line_b};
}

void check_same(comm::Group& group, const std::string& description) {
  const std::vector<std::string> all = comm::all_gather_bytes(group, description, 4096);
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const auto [first, other] = first_difference(all[0], all[r]);
    throw UserError(
        fmt::format("embedding: the ranks make different collections: rank 0 has \"{}\", but rank "
                    "{} has \"{}\"",
                    first, r, other),
        "make the same ShardedEmbeddingCollection on all ranks of the group, in the same order");
  }
}

void add_counts(ShardedTables::Contents& contents, const std::string& prefix,
                const KeyCounts& counts) {
  contents[prefix + "keys"] = counts.keys;
  contents[prefix + "occurrences"] = counts.occurrences;
  contents[prefix + "last_step"] = counts.last_step;
}

KeyCounts counts_in(const ShardedTables::Contents& contents, const std::string& prefix) {
  return {.keys = contents.at(prefix + "keys"),
          .occurrences = contents.at(prefix + "occurrences"),
          .last_step = contents.at(prefix + "last_step")};
}

}  // namespace

ShardedTables::ShardedTables(const PackSpec& spec, Options options,
                             const std::shared_ptr<comm::Group>& group)
    : group_(group) {
  check_same(*group, options.description);
  options.placement.ranks = group->size();
  if (options.gradients == RankGradients::kMean) scale_ = 1.0 / group->size();
  tables_.emplace(spec, place_tables(spec, options.placement), group, options.payloads,
                  options.tiers, options.hashed);
}

void ShardedTables::end_step() {
  if (!step_) return;
  tables_->discard(*step_);
  step_.reset();
  ++steps_;
}

at::Tensor ShardedTables::pool(const Jagged& batch) {
  end_step();
  return tables_->lookup(batch);
}

std::pair<at::Tensor, int64_t> ShardedTables::pool_for_training(const Jagged& batch) {
  end_step();
  // Use one micro-batch on every rank, whatever its number of samples.
  TableStep step = tables_->start(batch, std::numeric_limits<int64_t>::max(), 1);
  tables_->begin(step);
  step_ = std::move(step);
  tables_->gather(*step_, 0);
  return {tables_->wait(*step_, 0), ++lookups_};
}

void ShardedTables::add_gradient(int64_t number, PooledGradient part) {
  user_check(step_ && number == lookups_,
             "embedding: a gradient came for lookup {}, but its step has ended. A "
             "ShardedEmbeddingCollection has one step at a time: each lookup is followed by at "
             "most one backward, before the next lookup",
             number);
  const at::Tensor gradient = scale_ == 1 ? part.gradient : part.gradient * scale_;
  tables_->add_gradient(*step_, 0, gradient.contiguous());
  tables_->update(*step_);
  step_.reset();
  ++updates_;
  ++steps_;
}

void ShardedTables::set_steps(int64_t updates, int64_t steps) {
  end_step();
  tables_->set_steps(updates, steps);
  updates_ = updates;
  steps_ = steps;
}

ShardedTables::Contents ShardedTables::shapes(int64_t table) const {
  const TableSpec& of_table = spec().tables.at(static_cast<size_t>(table));
  const int64_t rows = of_table.hashed ? 0 : of_table.rows;
  const auto shape = [&](int64_t width, at::ScalarType dtype) {
    return at::empty({rows, width}, at::TensorOptions(at::kMeta).dtype(dtype));
  };
  Contents contents = {{"weight", shape(stored_width(spec().row_dtype, of_table.dim),
                                        stored_type(spec().row_dtype))}};
  for (auto& [name, state] : named_state(optimizer_of(spec(), table).kind,
                                         shape(state_per_row(spec(), table), at::kFloat)))
    contents[name] = state;
  if (!of_table.hashed) return contents;
  const at::Tensor none = at::empty({0}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  for (const char* prefix : {"", "candidate_"})
    add_counts(contents, prefix, {.keys = none, .occurrences = none, .last_step = none});
  return contents;
}

ShardedTables::Contents ShardedTables::read(int64_t table) {
  end_step();
  Contents contents;
  TableContents rows;
  if (tables_->is_hashed(table)) {
    const KeyedRows keyed = tables_->read_keys(table);
    rows = {.weight = keyed.weight, .state = keyed.state};
    if (group_->rank() == 0) {
      add_counts(contents, "", keyed.known);
      add_counts(contents, "candidate_", keyed.candidates);
    }
  } else {
    rows = tables_->read(table);
  }
  if (group_->rank() != 0) return {};
  contents["weight"] = rows.weight;
  if (rows.state.defined())
    for (const auto& [name, state] : named_state(optimizer_of(spec(), table).kind, rows.state))
      contents[name] = state;
  for (auto& [name, tensor] : contents) tensor = tensor.clone(at::MemoryFormat::Contiguous);
  return contents;
}

void ShardedTables::write(int64_t table, const Contents& contents) {
  end_step();
  TableContents rows;
  if (group_->rank() == 0) {
    rows.weight = contents.at("weight");
    rows.state = at::empty({rows.weight.size(0), state_per_row(spec(), table)}, at::kFloat);
    for (auto& [name, state] : named_state(optimizer_of(spec(), table).kind, rows.state))
      state.copy_(contents.at(name));
  }
  if (!tables_->is_hashed(table)) return tables_->write(table, rows);
  KeyedRows keyed{.known = {}, .weight = rows.weight, .state = rows.state, .candidates = {}};
  if (group_->rank() == 0) {
    keyed.known = counts_in(contents, "");
    keyed.candidates = counts_in(contents, "candidate_");
  }
  tables_->write_keys(table, keyed);
}

}  // namespace dovetail::embedding
