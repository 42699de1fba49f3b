#include "dovetail/io/mx_tensor.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/json_fault.h"

namespace dovetail::io {

namespace {

std::string codes_name(const std::string& name) { return name + ".codes"; }
std::string scales_name(const std::string& name) { return name + ".scales"; }

}  // namespace

void put_mx_tensor(const std::string& name, const mx::MXTensor& x, SafetensorsContent& content) {
  content.tensors[codes_name(name)] = mx::pack_codes(x.codes(), x.format());
  content.tensors[scales_name(name)] = x.scales();
  const nlohmann::ordered_json metadata = {{"format", mx::name(x.format())},
                                           {"orientation", mx::name(x.orientation())},
                                           {"shape", x.sizes().vec()}};
  content.metadata[name] = metadata.dump();
}

mx::MXTensor read_mx_tensor(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.metadata().find(name);
  user_check(found != file.metadata().end(),
             "{}: metadata has no \"{}\", so it is no microscaling tensor", file.name(), name);
  try {
    const auto json = nlohmann::json::parse(found->second);
    const auto shape = json.at("shape").get<std::vector<int64_t>>();
    const mx::Format format = mx::parse_format(json.at("format").get<std::string>());
    const mx::Orientation orientation =
        mx::parse_orientation(json.at("orientation").get<std::string>());
    return {mx::unpack_codes(file.read(codes_name(name)), format, shape),
            file.read(scales_name(name)), format, orientation};
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("{}: metadata of \"{}\" is not what a microscaling tensor has: {}",
                                file.name(), name, json_fault(error)),
                    "write it with put_mx_tensor, or see dovetail/io/mx_tensor.h");
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: \"{}\": {}", file.name(), name, error.what()), error.help());
  }
}

}  // namespace dovetail::io
