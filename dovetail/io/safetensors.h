#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/base/file.h"

namespace dovetail::io {

/// Writes named tensors in the safetensors format: header length (8 bytes, little-endian), JSON
/// header padded with spaces to 8 bytes, data. Widest dtypes come first, and names are in order
/// within a dtype. This aligns every tensor and gives the same bytes as the `safetensors` Python
/// package. Tensors may have any device and strides. The dtypes are F64 F32 F16 BF16 I64 I32 I16 I8
/// U8 BOOL F8_E4M3 F8_E5M2; throws UserError for others. The file is written atomically
/// (AtomicFile). Returns the sha256 of the file.
std::string write_safetensors(const std::filesystem::path& path,
                              const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// Writes a safetensors file of one tensor block by block, so that only one block need be in
/// memory. The bytes equal the output of write_safetensors. Throws UserError if the disk does not
/// take them.
class SafetensorsStream {
 public:
  SafetensorsStream(const std::filesystem::path& path, const std::string& name,
                    at::ScalarType dtype, const std::vector<int64_t>& shape);
  /// Appends the next rows, (n, ...) on the CPU.
  void append(const at::Tensor& rows);
  /// Completes the file under its name and returns its sha256. All rows must have been appended.
  std::string commit();
  uint64_t bytes_written() const { return file_.bytes_written(); }

 private:
  void put(const void* data, size_t bytes);

  AtomicFile file_;
  Sha256 digest_;
  std::string name_;
  at::ScalarType dtype_;
  uint64_t left_ = 0;  ///< bytes to append
};

/// Safetensors file, memory-mapped. The constructor checks the whole file before it is used. It
/// checks header length, JSON (no duplicate key), dtypes and shapes. Offsets must be inside the
/// file, with no overlap and no hole. Throws UserError with file and reason.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  /// Reads bytes in memory, which must outlive this object (for the fuzz test). `name` appears in
  /// errors.
  SafetensorsFile(std::string_view bytes, std::string name);

  const std::string& name() const { return name_; }  ///< name of the file
  std::vector<std::string> names() const;            ///< names of the tensors, ascending
  bool contains(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;
  at::ScalarType dtype(const std::string& name) const;
  /// Returns a copy on the CPU. Throws UserError with the nearest name if the tensor is absent.
  /// Also if a BOOL holds other bytes than 0 and 1.
  at::Tensor read(const std::string& name) const;
  /// Returns a copy of rows [first, first + count) of a tensor with at least one dimension. The
  /// rows do not stay resident in the mapping. So a large tensor can be read with the memory of one
  /// block.
  at::Tensor read_rows(const std::string& name, int64_t first, int64_t count) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  struct Entry {
    at::ScalarType dtype;
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;
  };
  void parse(std::string_view bytes);
  const Entry& entry(const std::string& name) const;
  at::Tensor copy_of(const std::string& name, const Entry& entry) const;
  [[noreturn]] void refuse(const std::string& reason) const;

  MappedFile file_;
  std::string_view data_;
  std::string name_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace dovetail::io
