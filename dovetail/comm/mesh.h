#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail {

/// The ranks of a world as an array with named axes: {{"data", 2}, {"expert", 4}, {"expert_tensor",
/// 1}}.
///
/// The last axis runs fastest: rank = (data * 4 + expert) * 1 + expert_tensor, so ranks that
/// exchange most stand on one node. Each axis has a group, of the ranks that differ from this one
/// only along it, in the order of their coordinates; an axis of size 1 has a group of one. All
/// groups have connections of their own, also one that holds the whole world, so that gradients
/// which are summed in the world meet no all-to-all on their way.
class Mesh {
 public:
  struct Axis {
    std::string name;
    int size = 1;
  };
  /// All ranks together, with the same axes: every rank makes the same groups in the same order.
  /// Throws UserError when sizes are below 1 or their product is not the world's size, or a name
  /// stands twice.
  Mesh(std::shared_ptr<Group> world, std::vector<Axis> axes);

  const std::shared_ptr<Group>& world() const { return world_; }
  const std::shared_ptr<Group>& group(
      std::string_view axis) const;  ///< InternalError for an axis that is not there
  int size(std::string_view axis) const;
  int coordinate(std::string_view axis) const;  ///< of this rank; its rank in the axis's group

  /// The ranks that differ from this one only along these axes, in rank order: {"data", "expert"}
  /// for gradients of what is alike on both. All ranks together.
  std::shared_ptr<Group> make_group(const std::vector<std::string>& axes) const;

 private:
  size_t index_of(std::string_view axis) const;
  int coordinate_of(int rank, size_t axis) const;

  std::shared_ptr<Group> world_;
  std::vector<Axis> axes_;
  std::vector<std::shared_ptr<Group>> groups_;
};

}  // namespace dovetail
