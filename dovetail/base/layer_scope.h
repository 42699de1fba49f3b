#pragma once

#include <string>
#include <string_view>

namespace dovetail {

/// The layer that the calling thread is in, for what reports by layer: a module's forward opens a
/// scope with its own name, and scopes inside one another join to a path, "encoder.conv1".
class LayerScope {
 public:
  explicit LayerScope(std::string_view name);
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  size_t length_before_;
};

/// The path of the open scopes; empty outside of all.
const std::string& current_layer();

}  // namespace dovetail
