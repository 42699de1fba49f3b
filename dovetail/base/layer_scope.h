#pragma once

#include <string>
#include <string_view>

namespace dovetail {

/// Scope that names the layer which the calling thread executes. Reports list results by layer. The
/// forward function of a module opens a scope with the module's name. Nested scopes form a path
/// such as "encoder.conv1".
class LayerScope {
 public:
  explicit LayerScope(std::string_view name);
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  size_t length_before_;
};

/// Returns the path of the open scopes of the calling thread; empty outside all scopes.
const std::string& current_layer();

}  // namespace dovetail
