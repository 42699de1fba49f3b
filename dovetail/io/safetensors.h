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

/// Writes named tensors to a file in the safetensors format, and returns the sha256 of the file.
/// The format has the header length (8 bytes, little-endian), a JSON header, then the data. Spaces
/// pad the header to a multiple of 8 bytes.
///
/// Tensors with the widest elements come first. Tensors of one dtype are sorted by name. This
/// aligns every tensor and gives the same bytes as the `safetensors` Python package. Tensors may
/// have any device and strides. The dtypes are F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL F8_E8M0
/// F8_E4M3 F8_E5M2; throws UserError for others. The file gets its name only when it is complete
/// (AtomicFile).
std::string write_safetensors(const std::filesystem::path& path,
                              const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

/// Writes a safetensors file with one tensor. The caller appends the rows of the tensor block by
/// block, so only one block need be in memory. The file has the same bytes as one from
/// write_safetensors. Throws UserError if a write to the disk fails.
class SafetensorsStream {
 public:
  /// Opens the file at `path` and writes the header. `shape` is the shape of the whole tensor.
  SafetensorsStream(const std::filesystem::path& path, const std::string& name,
                    at::ScalarType dtype, const std::vector<int64_t>& shape);
  /// Appends the next n rows of the tensor: (n, ...) on the CPU, any n.
  void append(const at::Tensor& rows);
  /// Gives the complete file its final name, `path`, and returns its sha256. All rows must have
  /// been appended before.
  std::string commit();
  /// Returns the number of bytes that were written to the file so far, including its header.
  uint64_t bytes_written() const { return file_.bytes_written(); }

 private:
  void put(const void* data, size_t bytes);

  AtomicFile file_;
  Sha256 digest_;
  std::string name_;
  at::ScalarType dtype_;
  uint64_t left_ = 0;  ///< bytes of the file that are not written yet
};

/// Safetensors file, memory-mapped for reading. The constructor checks the header: its length, JSON
/// (no duplicate key), dtypes and shapes. The data of the tensors must fill the rest of the file,
/// with no overlap and no hole. The constructor throws UserError, with file and reason, if a check
/// fails.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  /// Reads a file that is already in memory (for the fuzz test). `bytes` must outlive this object;
  /// `name` stands for the path in errors.
  SafetensorsFile(std::string_view bytes, std::string name);

  const std::string& name() const { return name_; }  ///< path of the file
  std::vector<std::string> names() const;            ///< names of the tensors, ascending
  bool contains(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;
  at::ScalarType dtype(const std::string& name) const;
  /// Returns a copy of a tensor, on the CPU. Throws UserError if the file has no tensor of that
  /// name; the error suggests the most similar name. Also throws if a BOOL tensor has a byte other
  /// than 0 and 1.
  at::Tensor read(const std::string& name) const;
  /// Returns a copy of rows [first, first + count) of a tensor with at least one dimension. Then
  /// drops the mapped pages of these rows from memory. So reading a large tensor block by block
  /// takes the memory of one block.
  at::Tensor read_rows(const std::string& name, int64_t first, int64_t count) const;
  /// Returns the texts that the writer passed as `metadata`.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  struct Entry {
    at::ScalarType dtype;
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;  ///< byte range of the tensor in `data_`
  };
  void parse(std::string_view bytes);
  const Entry& entry(const std::string& name) const;
  at::Tensor copy_of(const std::string& name, const Entry& entry) const;
  [[noreturn]] void refuse(const std::string& reason) const;

  MappedFile file_;
  std::string_view data_;  ///< bytes of the file after the header
  std::string name_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace dovetail::io
