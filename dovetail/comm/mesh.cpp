#include "dovetail/comm/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::comm {
namespace {

void check_axes(const std::vector<Mesh::Axis>& axes, int ranks) {
  int64_t product = 1;
  std::vector<std::string> factors;
  for (size_t i = 0; i < axes.size(); ++i) {
    user_check(axes[i].size >= 1, "mesh: axis {} has size {}, not a positive one", axes[i].name,
               axes[i].size);
    for (size_t j = 0; j < i; ++j)
      user_check(axes[i].name != axes[j].name, "mesh: axis {} stands twice", axes[i].name);
    product *= axes[i].size;
    factors.push_back(fmt::format("{} {}", axes[i].name, axes[i].size));
  }
  if (product != ranks)
    throw UserError(fmt::format("mesh: {} = {} ranks, but the job has {}",
                                fmt::join(factors, " x "), product, ranks),
                    "choose sizes whose product is the number of ranks, or launch as many ranks");
}

}  // namespace

Mesh::Mesh(std::shared_ptr<Group> world, std::vector<Axis> axes)
    : world_(std::move(world)), axes_(std::move(axes)) {
  check_axes(axes_, world_->size());
  for (const auto& axis : axes_) groups_.push_back(make_group({axis.name}));
}

const std::shared_ptr<Group>& Mesh::group(std::string_view axis) const {
  return groups_[index_of(axis)];
}
int Mesh::size(std::string_view axis) const { return axes_[index_of(axis)].size; }
int Mesh::coordinate(std::string_view axis) const {
  return coordinate_of(world_->rank(), index_of(axis));
}

std::shared_ptr<Group> Mesh::make_group(const std::vector<std::string>& axes) const {
  std::vector<bool> free(axes_.size(), false);
  for (const auto& axis : axes) free[index_of(axis)] = true;
  // Keyed by the coordinates along the other axes.
  std::map<std::vector<int>, std::vector<int>> parts;
  for (int rank = 0; rank < world_->size(); ++rank) {
    std::vector<int> fixed;
    for (size_t i = 0; i < axes_.size(); ++i)
      if (!free[i]) fixed.push_back(coordinate_of(rank, i));
    parts[fixed].push_back(rank);
  }
  std::vector<std::vector<int>> list;
  list.reserve(parts.size());
  for (auto& [fixed, ranks] : parts) list.push_back(std::move(ranks));
  return world_->split(list);
}

size_t Mesh::index_of(std::string_view axis) const {
  const auto found = std::ranges::find(axes_, axis, &Axis::name);
  DOVETAIL_CHECK(found != axes_.end(), "the mesh has no axis {}", axis);
  return static_cast<size_t>(found - axes_.begin());
}

int Mesh::coordinate_of(int rank, size_t axis) const {
  for (size_t i = axes_.size(); --i > axis;) rank /= axes_[i].size;
  return rank % axes_[axis].size;
}

}  // namespace dovetail::comm
