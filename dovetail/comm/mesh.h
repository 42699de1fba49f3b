#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::comm {

/// Ranks of a world as an array with named axes. Example of 8 ranks: {{"data", 2}, {"expert", 4},
/// {"expert_tensor", 1}}.
///
/// The last axis varies fastest. In the example, rank = (data * 4 + expert) * 1 + expert_tensor.
/// Ranks along the last axes are usually on one node, so put the axes with the largest traffic
/// last.
///
/// Each axis has a group: the ranks whose coordinates differ from this rank's only along that axis,
/// in coordinate order. An axis of size 1 has a group of one. Every group has its own connections,
/// even if it holds the whole world. So gradient sums over the world do not wait for the
/// all-to-alls of an axis.
class Mesh {
 public:
  struct Axis {
    std::string name;
    int size = 1;
  };
  /// Makes the group of each axis. All ranks call it together with the same axes, because all ranks
  /// must make groups in the same order. Throws UserError if a size is below 1, the product of
  /// sizes is not the world's size, or a name occurs twice.
  Mesh(std::shared_ptr<Group> world, std::vector<Axis> axes);

  const std::shared_ptr<Group>& world() const { return world_; }
  /// Returns the group of an axis. `group`, `size` and `coordinate` throw InternalError if there is
  /// no axis of this name.
  const std::shared_ptr<Group>& group(std::string_view axis) const;
  int size(std::string_view axis) const;
  /// Returns this rank's coordinate along the axis, which is also its rank in the axis's group.
  int coordinate(std::string_view axis) const;

  /// Makes the group of the ranks whose coordinates differ from this rank's only along `axes`, in
  /// rank order. Example: make_group({"data", "expert"}) sums gradients of parameters that are
  /// replicated along both axes. All ranks call it together.
  std::shared_ptr<Group> make_group(const std::vector<std::string>& axes) const;

 private:
  size_t index_of(std::string_view axis) const;
  int coordinate_of(int rank, size_t axis) const;

  std::shared_ptr<Group> world_;
  std::vector<Axis> axes_;
  std::vector<std::shared_ptr<Group>> groups_;
};

}  // namespace dovetail::comm
