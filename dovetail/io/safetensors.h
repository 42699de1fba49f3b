#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/file.h"

namespace dovetail {

/// Named tensors in the safetensors format (8-byte little-endian header length, JSON header, data), keys sorted, header
/// padded to 8 bytes. Written atomically. Returns the sha256 of the file.
std::string write_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// A safetensors file, memory-mapped and checked whole before anything is used: header length, JSON, dtypes, shapes, offsets
/// inside the file, no overlap and no hole. Throws UserError with file and reason.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  /// The same over bytes in memory (for the fuzz test); `name` stands in errors.
  SafetensorsFile(std::string_view bytes, std::string name);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;
  at::ScalarType dtype(const std::string& name) const;
  /// A copy of its own. UserError naming the nearest name when absent.
  at::Tensor read(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  struct Entry {
    at::ScalarType dtype;
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;
  };
  void parse(std::string_view bytes);
  const Entry& entry(const std::string& name) const;
  MappedFile file_;
  std::string_view data_;
  std::string name_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace dovetail
