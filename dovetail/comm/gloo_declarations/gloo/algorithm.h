#pragma once

#include <memory>

namespace gloo {
class Algorithm;
class Context;
}  // namespace gloo
