#include "dovetail/plan/record/step_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "dovetail/plan/model/index_list.h"
#include "dovetail/plan/model/packing.h"

namespace dovetail::plan {
namespace {

class Builder {
 public:
  explicit Builder(const CapturedStep& step)
      : step_(step),
        first_use_(step.storages.size(), -1),
        last_use_(step.storages.size(), -1),
        is_fixed_and_written_(step.storages.size(), false) {}

  StepGraph build() {
    group();
    find_uses();
    add_tensors();
    for (size_t n = 0; n < made_.nodes.size(); ++n) add_node(n);
    for (size_t s = 0; s < step_.storages.size(); ++s) {
      const bool written = std::any_of(
          step_.operations.begin(), step_.operations.end(),
          [&](const auto& operation) { return contains(operation.writes, static_cast<int>(s)); });
      const TensorKind kind = step_.storages[s].kind;
      if (kind == TensorKind::kParam || kind == TensorKind::kState || kind == TensorKind::kOutput ||
          (written && kind == TensorKind::kInput))
        if (made_.tensor_of_storage[s] >= 0)
          made_.graph.final.push_back(made_.tensor_of_storage[s]);
    }
    return std::move(made_);
  }

 private:
  void group() {
    std::vector<int> node_of(step_.storages.size(), -1);  // per storage: node that creates it
    for (size_t o = 0; o < step_.operations.size(); ++o) {
      const auto& operation = step_.operations[o];
      const int latest = static_cast<int>(made_.nodes.size()) - 1;
      const bool joins = !operation.writes.empty() && latest >= 0 &&
                         std::all_of(operation.writes.begin(), operation.writes.end(),
                                     [&](int storage) { return node_of[storage] == latest; });
      if (!joins) made_.nodes.push_back({.first = static_cast<int>(o)});
      made_.nodes.back().last = static_cast<int>(o) + 1;
      for (const int storage : operation.makes)
        node_of[storage] = static_cast<int>(made_.nodes.size()) - 1;
    }
  }

  void find_uses() {
    for (size_t n = 0; n < made_.nodes.size(); ++n)
      for (int o = made_.nodes[n].first; o < made_.nodes[n].last; ++o)
        for (const auto* list :
             {&step_.operations[o].reads, &step_.operations[o].writes, &step_.operations[o].makes})
          for (const int storage : *list) {
            if (first_use_[storage] < 0) first_use_[storage] = static_cast<int>(n);
            last_use_[storage] = static_cast<int>(n);
          }
    for (const auto& operation : step_.operations)
      for (const int storage : operation.writes)
        is_fixed_and_written_[storage] = step_.storages[storage].is_fixed();
  }

  bool is_local(int storage) const {
    return !step_.storages[storage].external.defined() && !step_.storages[storage].elsewhere &&
           step_.storages[storage].kind != TensorKind::kOutput &&
           first_use_[storage] == last_use_[storage];
  }

  void add_tensors() {
    made_.tensor_of_storage.assign(step_.storages.size(), -1);
    made_.graph.base_bytes += step_.held_bytes;
    for (size_t s = 0; s < step_.storages.size(); ++s) {
      const CapturedStorage& storage = step_.storages[s];
      if (storage.elsewhere) continue;
      if (storage.is_fixed()) {
        made_.graph.base_bytes += storage.bytes;
        continue;
      }
      if (is_local(static_cast<int>(s))) continue;
      made_.tensor_of_storage[s] = static_cast<int>(made_.graph.tensors.size());
      made_.storage_of_tensor.push_back(static_cast<int>(s));
      made_.graph.tensors.push_back(
          {.id = storage.name, .bytes = planned_bytes(storage.bytes), .kind = storage.kind});
    }
  }

  void add_node(size_t n) {
    StepNode& node = made_.nodes[n];
    const auto& first = step_.operations[node.first];
    GraphNode out{.name = fmt::format("{}:{}", first.name, node.first), .layer = first.layer};
    std::vector<int> makes;
    for (int o = node.first; o < node.last; ++o) {
      const auto& operation = step_.operations[o];
      out.random = out.random || operation.random;
      out.recomputable = out.recomputable && !operation.once;
      for (const auto* list : {&operation.reads, &operation.writes})
        for (const int storage : *list)
          out.recomputable = out.recomputable && !is_fixed_and_written_[storage];
      for (const int storage : operation.makes) makes.push_back(storage);
      for (const int storage : operation.reads)
        if (!contains(makes, storage)) add_tensor(out.inputs, storage);
      for (const int storage : operation.writes)
        if (!contains(makes, storage)) add_tensor(out.mutates, storage);
    }
    for (const int storage : makes) add_tensor(out.outputs, storage);
    double recorded_s = 0;
    for (int o = node.first; o < node.last; ++o) recorded_s += step_.operations[o].seconds;
    node.memory = place_allocations(run_of(step_, node, 0).operations, made_.tensor_of_storage);
    out.algorithms = {
        {.name = "captured", .time_s = recorded_s, .workspace_bytes = node.memory.workspace_bytes}};
    made_.graph.nodes.push_back(std::move(out));
  }

  void add_tensor(std::vector<int>& list, int storage) const {
    if (made_.tensor_of_storage[storage] >= 0) add_once(list, made_.tensor_of_storage[storage]);
  }

  const CapturedStep& step_;
  std::vector<int> first_use_, last_use_;
  // Each operation on these storages runs once, where it was recorded.
  std::vector<bool> is_fixed_and_written_;
  StepGraph made_;
};

/// Allocations of a node's operations that are part of its workspace, with the times during which
/// they are held.
class WorkspaceBlocks {
 public:
  explicit WorkspaceBlocks(const std::vector<int>& tensor_of_storage)
      : tensor_of_storage_(tensor_of_storage) {}

  void add(const CapturedOperation& operation) {
    const int index = static_cast<int>(memory_.places.size());
    auto& places = memory_.places.emplace_back();
    std::vector<int> block_of;
    for (const MemoryEvent& event : operation.memory) {
      ++time_;
      if (event.ends) {
        if (block_of[event.allocation] >= 0)
          blocks_[block_of[event.allocation]].spans[0].second = time_;
        continue;
      }
      places.push_back({.bytes = event.bytes});
      const auto made = std::find(operation.makes_allocation.begin(),
                                  operation.makes_allocation.end(), event.allocation);
      const int storage = made == operation.makes_allocation.end()
                              ? -1
                              : operation.makes[made - operation.makes_allocation.begin()];
      if (storage >= 0 && tensor_of_storage_[storage] >= 0) {
        places.back().storage = storage;
        block_of.push_back(-1);
        continue;
      }
      block_of.push_back(static_cast<int>(blocks_.size()));
      if (storage >= 0) block_of_storage_[storage] = block_of.back();
      blocks_.push_back({.bytes = planned_bytes(event.bytes), .spans = {{time_, -1}}});
      users_.emplace_back(index, static_cast<int>(places.size()) - 1);
    }
    ++time_;
    // Memory that outlives its operation and is not a storage of the graph is held until the node
    // ends.
    for (const auto* list : {&operation.reads, &operation.writes, &operation.makes})
      for (const int storage : *list)
        if (block_of_storage_.contains(storage))
          blocks_[block_of_storage_[storage]].spans[0].second = time_;
  }

  NodeMemory place() {
    for (Block& block : blocks_)
      if (block.spans[0].second < 0) block.spans[0].second = time_ + 1;
    const Packing packing = pack(blocks_);
    for (size_t b = 0; b < blocks_.size(); ++b)
      memory_.places[users_[b].first][users_[b].second].workspace_offset = packing.offsets[b];
    for (const auto& [storage, block] : block_of_storage_)
      memory_.local.emplace_back(storage, packing.offsets[block]);
    memory_.workspace_bytes = packing.bytes;
    return std::move(memory_);
  }

 private:
  const std::vector<int>& tensor_of_storage_;
  int time_ = 0;
  std::vector<Block> blocks_;
  std::vector<std::pair<int, int>> users_;  // per block: operation, allocation
  std::map<int, int> block_of_storage_;
  NodeMemory memory_;
};

}  // namespace

StepGraph graph_of(const CapturedStep& step) { return Builder(step).build(); }

NodeMemory place_allocations(std::span<const CapturedOperation> operations,
                             const std::vector<int>& tensor_of_storage) {
  WorkspaceBlocks blocks(tensor_of_storage);
  for (const CapturedOperation& operation : operations) blocks.add(operation);
  return blocks.place();
}

NodeRun run_of(const CapturedStep& step, const StepNode& node, int algorithm) {
  if (algorithm > 0)
    return {node.variants[algorithm - 1].operations, node.variants[algorithm - 1].memory};
  return {std::span(step.operations).subspan(node.first, node.last - node.first), node.memory};
}

}  // namespace dovetail::plan
