#include "dovetail/base/layer_scope.h"

namespace dovetail {
namespace {

std::string& path() {
  thread_local std::string path;
  return path;
}

}  // namespace

LayerScope::LayerScope(std::string_view name) : length_before_(path().size()) {
  if (length_before_ > 0) path() += '.';
  path() += name;
}

LayerScope::~LayerScope() { path().resize(length_before_); }

const std::string& current_layer() { return path(); }

}  // namespace dovetail
