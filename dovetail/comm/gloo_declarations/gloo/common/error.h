#pragma once

#include <stdexcept>
