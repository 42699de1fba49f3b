#include "dovetail/jobs/nodes.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string_view>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/trace.h"
#include "dovetail/jobs/partition.h"

namespace dovetail::jobs {
namespace {

/// Shards or rows [first, second).
using Range = std::pair<int64_t, int64_t>;

Range meet(Range a, Range b) {
  const int64_t begin = std::max(a.first, b.first);
  return {begin, std::max(begin, std::min(a.second, b.second))};
}

int64_t size_of(Range range) { return range.second - range.first; }

Range range_of(const std::vector<int64_t>& bounds, size_t node) {
  return {bounds[node], bounds[node + 1]};
}

std::vector<int64_t> bounds_of(const std::vector<int64_t>& shares) {
  std::vector<int64_t> bounds = {0};
  for (const int64_t share : shares) bounds.push_back(bounds.back() + share);
  return bounds;
}

/// Message of a node to the others about its part of a job.
struct Told {
  std::string failure, help;  ///< empty: none
  bool by_the_user = false;   ///< the failure is a UserError
  double seconds = 0;
  std::vector<BlockSum> blocks;
};

void append(std::string& bytes, int64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void append(std::string& bytes, const std::string& text) {
  append(bytes, std::ssize(text));
  bytes += text;
}

/// Returns the tensors of a partial, Partial::of_shards last.
std::vector<at::Tensor> all_of(const Partial& partial) {
  std::vector<at::Tensor> tensors = partial.tensors;
  if (partial.of_shards.defined()) tensors.push_back(partial.of_shards);
  return tensors;
}

/// Serializes a message: failure and its help, then 64-bit numbers, then all bytes of the tensors.
/// The numbers are in this order:
///   - by_the_user, seconds, number of blocks, tensors per block,
///   - dtype, dim and sizes of each tensor, which all blocks share,
///   - 1 if the last tensor is Partial::of_shards, whose first size is the block's count,
///   - first, count and weight of each block, and 1 if it has tensors.
std::string pack(const Told& told) {
  std::vector<at::Tensor> shapes;
  bool of_shards = false;
  for (const BlockSum& block : told.blocks) {
    if (!shapes.empty()) break;
    shapes = all_of(block.partial);
    of_shards = block.partial.of_shards.defined();
  }
  std::string bytes;
  append(bytes, told.failure);
  append(bytes, told.help);
  for (const int64_t number : {int64_t{told.by_the_user}, std::bit_cast<int64_t>(told.seconds),
                               std::ssize(told.blocks), static_cast<int64_t>(std::ssize(shapes))})
    append(bytes, number);
  for (const at::Tensor& tensor : shapes) {
    append(bytes, static_cast<int64_t>(tensor.scalar_type()));
    append(bytes, tensor.dim());
    for (const int64_t size : tensor.sizes()) append(bytes, size);
  }
  append(bytes, int64_t{of_shards});
  for (const BlockSum& block : told.blocks)
    for (const int64_t number :
         {block.first, block.count, std::bit_cast<int64_t>(block.partial.weight),
          int64_t{!all_of(block.partial).empty()}})
      append(bytes, number);
  for (const BlockSum& block : told.blocks)
    for (const at::Tensor& tensor : all_of(block.partial)) {
      const at::Tensor flat = tensor.contiguous();
      bytes.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    }
  return bytes;
}

/// Reads what `pack` wrote, piece by piece.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  std::string_view take(size_t count) {
    DOVETAIL_CHECK(count <= left_.size(), "a node sent {} bytes too few", count - left_.size());
    const std::string_view piece = left_.substr(0, count);
    left_.remove_prefix(count);
    return piece;
  }
  int64_t number() {
    int64_t value = 0;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string text() { return std::string(take(static_cast<size_t>(number()))); }

 private:
  std::string_view left_;
};

Told unpack(std::string_view bytes) {
  Reader reader(bytes);
  Told told;
  told.failure = reader.text();
  told.help = reader.text();
  told.by_the_user = reader.number() != 0;
  told.seconds = std::bit_cast<double>(reader.number());
  told.blocks.resize(static_cast<size_t>(reader.number()));
  std::vector<std::pair<at::ScalarType, std::vector<int64_t>>> shapes(
      static_cast<size_t>(reader.number()));
  for (auto& [type, sizes] : shapes) {
    type = static_cast<at::ScalarType>(reader.number());
    sizes.resize(static_cast<size_t>(reader.number()));
    for (int64_t& size : sizes) size = reader.number();
  }
  const bool of_shards = reader.number() != 0;
  for (BlockSum& block : told.blocks) {
    block.first = reader.number();
    block.count = reader.number();
    block.partial.weight = std::bit_cast<double>(reader.number());
    if (reader.number() == 0) continue;
    for (const auto& [type, sizes] : shapes)
      block.partial.tensors.push_back(at::empty(sizes, type));
    if (!of_shards) continue;
    std::vector<int64_t> sizes = shapes.back().second;
    sizes.at(0) = block.count;
    block.partial.tensors.pop_back();
    block.partial.of_shards = at::empty(sizes, shapes.back().first);
  }
  for (BlockSum& block : told.blocks)
    for (const at::Tensor& tensor : all_of(block.partial))
      std::memcpy(tensor.mutable_data_ptr(), reader.take(tensor.nbytes()).data(), tensor.nbytes());
  return told;
}

}  // namespace

Nodes::Nodes(std::shared_ptr<comm::Group> group, std::shared_ptr<Runtime> executors)
    : group_(std::move(group)),
      executors_(std::move(executors)),
      reports_(static_cast<size_t>(group_->size())) {}

Nodes::Bounds Nodes::bounds_for(Table& table, int64_t shards) const {
  const auto nodes = static_cast<int64_t>(reports_.size());
  std::vector<int64_t>& shares = table.shares;
  if (shares.empty()) {
    shares.assign(reports_.size(), shards / nodes);
    for (int64_t r = 0; r < shards % nodes; ++r) ++shares[static_cast<size_t>(r)];
  }
  // A node without any shard would no longer be measured.
  std::vector<DeviceCost> costs(reports_.size(), {.row_s = 0, .min_rows = shards >= nodes ? 1 : 0});
  for (const auto& [key, times] : table.times) {
    if (!std::ranges::all_of(times.nodes,
                             [](const SpeedHistory& node) { return node.speed().has_value(); }))
      continue;
    for (size_t r = 0; r < costs.size(); ++r)
      costs[r].row_s += times.recent * times.nodes[r].speed()->row_s;
  }
  if (costs[0].row_s > 0) shares = move_shares(shares, shards, costs, 1, kHysteresis);
  return bounds_of(shares);
}

/// Check that all nodes run the same job. Digests are exchanged while this node computes.
class Nodes::Comparison {
 public:
  Comparison(comm::Group& group, std::string task, uint64_t digest)
      : task_(std::move(task)), digests_(at::empty({group.size()}, at::kLong)) {
    const std::vector<int64_t> one_each(static_cast<size_t>(group.size()), 1);
    work_ = group.all_to_all_async(
        digests_, at::full({group.size()}, std::bit_cast<int64_t>(digest), at::kLong), one_each,
        one_each);
  }

  /// Waits for the digests. Must precede all sends that depend on equal jobs. Throws CommError if a
  /// node runs another job.
  void check() {
    if (!work_) return;
    work_->wait();
    work_.reset();
    for (int64_t r = 1; r < digests_.size(0); ++r)
      if (digests_[r].item<int64_t>() != digests_[0].item<int64_t>())
        throw comm::CommError(
            fmt::format("nodes 0 and {} run different jobs: their data or parameters of {} differ. "
                        "Give all nodes the same table, options and version of dovetail",
                        r, task_));
  }

 private:
  std::string task_;
  at::Tensor digests_;
  std::unique_ptr<comm::Group::Work> work_;  ///< null once checked
};

Nodes::Comparison Nodes::compare(const std::string& task, const std::string& key,
                                 const Parameters& parameters, const Shards& shards) {
  uint64_t digest = digest_of(parameters) ^ name_key(fmt::format("{}, {} shards of {} rows", key,
                                                                 shards.count(), shards.size));
  if (known_.insert(shards.data).second) digest ^= digest_of({rows_of(shards, 0)});
  return Comparison(*group_, task, digest);
}

/// Computes this node's part of a job. Returns the message to the other nodes.
std::string Nodes::compute(const std::string& task, const Parameters& parameters,
                           const Shards& shards, const Bounds& bounds) {
  const auto [begin, end] = range_of(bounds, static_cast<size_t>(group_->rank()));
  const Shards mine = shards.part(begin, end - begin);
  Told told;
  const double start = now_seconds();
  try {
    told.blocks = executors_ ? executors_->run_blocks(task, parameters, mine, begin)
                             : run_task_blocks(task, parameters, mine, begin);
  } catch (const std::exception& error) {
    const auto* by_the_user = dynamic_cast<const UserError*>(&error);
    told.by_the_user = by_the_user != nullptr;
    if (by_the_user != nullptr) told.help = by_the_user->help();
    told.failure = error.what();
    if (told.failure.empty()) told.failure = "an exception without a message";
  }
  told.seconds = now_seconds() - start;
  return pack(told);
}

Partial Nodes::merge(const std::string& task, Times& times, const Bounds& bounds,
                     const std::vector<std::string>& sent) {
  std::vector<Told> told;
  told.reserve(sent.size());
  for (const std::string& bytes : sent) told.push_back(unpack(bytes));
  for (size_t r = 0; r < told.size(); ++r) {
    if (told[r].failure.empty()) continue;
    const std::string what = fmt::format("{} failed on node {}: {}", task, r, told[r].failure);
    if (told[r].by_the_user) throw UserError(what, told[r].help);
    throw comm::CommError(what);
  }
  TreeSum sum;
  for (size_t r = 0; r < told.size(); ++r) {
    if (const int64_t shards = size_of(range_of(bounds, r)); shards > 0)
      times.nodes[r].add(1, std::max(told[r].seconds, 1e-9) / static_cast<double>(shards));
    reports_[r].seconds += told[r].seconds;
    for (BlockSum& block : told[r].blocks) sum.add(std::move(block));
  }
  return sum_of(sum.take(0, bounds.back()));
}

Partial Nodes::run(const std::string& task, const Parameters& parameters, const Shards& shards) {
  DOVETAIL_CHECK(shards.size > 0, "task {} on no shards", task);
  const std::string key = job_key(task, parameters, shards);
  Table& table = tables_[{shards.size, shards.count()}];
  const Bounds bounds = bounds_for(table, shards.count());
  Comparison same = compare(task, key, parameters, shards);
  Bounds rows;
  for (const int64_t place : bounds) rows.push_back(std::min(place * shards.grain, shards.size));
  bring_rows(shards, rows, same);
  for (auto& [other, times] : table.times) times.recent *= 0.9;
  Times& times = table.times[key];
  times.recent += 1;
  times.nodes.resize(reports_.size());
  const std::string mine = compute(task, parameters, shards, bounds);
  same.check();
  const std::vector<std::string> told = comm::all_gather_bytes(*group_, mine, times.longest);
  times.longest = std::ssize(*std::ranges::max_element(told, {}, &std::string::size));
  Partial sum = merge(task, times, bounds, told);
  for (size_t r = 0; r < reports_.size(); ++r) reports_[r].rows += size_of(range_of(rows, r));
  for (const size_t index : find_task(task, shards.location.type()).writes)
    written_[{shards.data, index}] = rows;
  return sum;
}

/// Sends rows of tensor `index` between nodes, so that node r has all rows of to[r]. Before the
/// call, their current values are on the nodes given by `from`.
void Nodes::move_rows(const Shards& all, size_t index, const Bounds& from,
                      const std::vector<Range>& to) {
  const auto me = static_cast<size_t>(group_->rank());
  const at::Tensor before = rows_of(all, index);
  std::vector<int64_t> send, receive;
  std::vector<at::Tensor> parts;
  for (size_t r = 0; r < to.size(); ++r) {
    reports_[r].moved += size_of(to[r]) - size_of(meet(range_of(from, r), to[r]));
    const Range out = meet(range_of(from, me), to[r]);
    send.push_back(r == me ? 0 : size_of(out));
    receive.push_back(r == me ? 0 : size_of(meet(range_of(from, r), to[me])));
    if (send.back() > 0) parts.push_back(before.narrow(0, out.first, send.back()));
  }
  std::vector<int64_t> shape = before.sizes().vec();
  shape[0] = std::accumulate(receive.begin(), receive.end(), int64_t{0});
  const at::Tensor output = at::empty(shape, before.options());
  group_
      ->all_to_all_async(output, parts.empty() ? before.narrow(0, 0, 0) : at::cat(parts), receive,
                         send)
      ->wait();
  if (shape[0] == 0) return;
  // A thread that is late may still read the old tensor, so nobody writes into it.
  const at::Tensor after = before.clone();
  int64_t next = 0;
  for (size_t r = 0; r < to.size(); ++r) {
    after.narrow(0, meet(range_of(from, r), to[me]).first, receive[r])
        .copy_(output.narrow(0, next, receive[r]));
    next += receive[r];
  }
  put_rows(all, index, {after});
}

/// Brings to each node the rows within `bounds` of all tensors that tasks have written.
void Nodes::bring_rows(const Shards& all, const Bounds& bounds, Comparison& same) {
  std::vector<Range> to;
  for (size_t r = 0; r < reports_.size(); ++r) to.push_back(range_of(bounds, r));
  for (auto place = written_.lower_bound({all.data, 0});
       place != written_.end() && place->first.first == all.data; ++place) {
    if (place->second == bounds) continue;
    same.check();
    move_rows(all, place->first.second, place->second, to);
    place->second = bounds;
  }
}

at::Tensor Nodes::rows(const ResidentData& data, size_t index) {
  if (const auto place = written_.find({data.id(), index}); place != written_.end()) {
    const Shards all = data.shards(data.tensor(index).size(0));
    move_rows(all, index, place->second, std::vector<Range>(reports_.size(), {0, all.size}));
    written_.erase(place);
  }
  return data.tensor(index);
}

}  // namespace dovetail::jobs
