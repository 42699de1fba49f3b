#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/images/image_file.h"
#include "dovetail/data/images/image_loader.h"
#include "dovetail/data/images/image_set.h"
#include "tests/data/npy.h"
#include "tests/data/temporary_folder.h"

namespace dovetail::data::images_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path fixtures() { return fs::path(std::getenv("DOVETAIL_TEST_DATA")) / "images"; }

/// Reads the tensors that tools/make_image_fixtures.py wrote. All are uint8.
std::map<std::string, at::Tensor> expected() {
  const std::string file = read_file(fixtures() / "expected.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const auto header = nlohmann::json::parse(file.substr(8, length));
  std::map<std::string, at::Tensor> out;
  for (const auto& [name, about] : header.items()) {
    if (name == "__metadata__") continue;
    const auto shape = about["shape"].get<std::vector<int64_t>>();
    const size_t begin = 8 + length + about["data_offsets"][0].get<size_t>();
    out[name] = at::from_blob(const_cast<char*>(file.data()) + begin, shape, at::kByte).clone();
  }
  return out;
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return std::string(error.what()) + " | " + error.help();
  }
  return "no error";
}

TEST(ImageFile, HasThePixelsOfPillow) {
  int compared = 0;
  for (const auto& [name, pixels] : expected()) {
    const size_t end = name.rfind('.');
    const std::string kind = name.substr(end + 1);
    const fs::path path = fixtures() / name.substr(0, end);
    const at::Tensor found =
        kind == "mask" ? read_mask(path) : read_image(path, kind == "rgb" ? 3 : 1);
    EXPECT_TRUE(found.equal(pixels)) << name << ": " << (found.to(at::kInt) - pixels).abs().max();
    ++compared;
  }
  EXPECT_EQ(compared, 25) << "pixels of 11 files in two forms, two masks and one of 16 bits";
}

TEST(ImageFile, OtherAndDamagedFilesAreNamed) {
  const TemporaryFolder folder;
  const auto of = [&](const std::string& name, const std::string& content, bool mask = false) {
    const fs::path path = folder.write(name, content);
    return message_of([&] { mask ? read_mask(path) : read_image(path, 3); });
  };
  const std::string png = read_file(fixtures() / "rgb.png"),
                    jpeg = read_file(fixtures() / "rgb.jpg");
  EXPECT_THAT(of("a.png", "GIF89a"), HasSubstr("neither a PNG nor a JPEG"));
  EXPECT_THAT(of("a.png", ""), HasSubstr("neither a PNG nor a JPEG"));
  for (const size_t cut : {size_t{9}, size_t{30}, png.size() / 2, png.size() - 20})
    EXPECT_THAT(of("cut.png", png.substr(0, cut)), HasSubstr("this PNG cannot be decoded")) << cut;
  for (const size_t cut : {size_t{4}, size_t{100}, jpeg.size() / 2, jpeg.size() - 20})
    EXPECT_THAT(of("cut.jpg", jpeg.substr(0, cut)), HasSubstr("this JPEG cannot be decoded"))
        << cut;
  std::string damaged = png;
  damaged[damaged.size() / 2] ^= 0x55;
  EXPECT_THAT(of("damaged.png", damaged), HasSubstr("this PNG cannot be decoded"));
  // Bytes that no part of the image needs give a warning and the same pixels.
  std::string extra = jpeg;
  extra.insert(extra.size() - 2, 5, '\0');
  EXPECT_TRUE(
      read_image(folder.write("extra.jpg", extra), 3).equal(read_image(fixtures() / "rgb.jpg", 3)));
  EXPECT_THAT(of("mask.jpg", jpeg, /*mask=*/true), HasSubstr("a mask must be a PNG"));
  EXPECT_THAT(of("mask.png", png, /*mask=*/true), HasSubstr("the mask has 3 channels"));
  EXPECT_THAT(message_of([] { read_mask(fixtures() / "wide.png"); }), HasSubstr("16 bits"));
  EXPECT_THAT(message_of([] { read_image(fixtures() / "cmyk.jpg", 3); }), HasSubstr("CMYK"));
}

template <class T>
fs::path write_npy(const TemporaryFolder& folder, const std::string& name, const char* type,
                   const std::string& shape, const std::vector<T>& values) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(T));
  return folder.write(name, test::npy(type, /*columns_first=*/false, shape, bytes));
}

/// Array of `count` images of height x width; value: 10 n + pixel number.
fs::path write_images(const TemporaryFolder& folder, int64_t count, int64_t height, int64_t width) {
  std::vector<uint8_t> values;
  for (int64_t n = 0; n < count; ++n)
    for (int64_t i = 0; i < height * width; ++i) values.push_back(static_cast<uint8_t>(10 * n + i));
  return write_npy(
      folder, "x.npy", "|u1",
      std::to_string(count) + ", " + std::to_string(height) + ", " + std::to_string(width), values);
}

constexpr ImageForm kTiny{.channels = 1, .height = 2, .width = 3, .classes = 4};

ImagesConfig plain(const fs::path& images, const fs::path& targets) {
  return {.train = images,
          .targets = targets,
          .validation_fraction = 0,
          .mirror = false,
          .mean = {0},
          .deviation = {1.0 / 255}};
}

TEST(ImageLoader, EachEpochHasEachSampleOnceForAnyRanks) {
  const TemporaryFolder folder;
  const ImagesConfig config =
      plain(write_images(folder, 7, 2, 3),
            write_npy<int64_t>(folder, "y.npy", "<i8", "7,", {0, 1, 2, 3, 0, 1, 2}));
  ImageLoader whole(config, kTiny, {.seed = 3, .batch = 4});
  ImageLoader second(config, kTiny, {.seed = 3, .batch = 4, .rank = 1, .world = 2});
  std::vector<int64_t> order;
  for (int64_t step = 0; step < 7; ++step) {
    const ImageBatch batch = whole.step(step);
    ASSERT_EQ(batch.images.sizes(), (std::vector<int64_t>{4, 1, 2, 3}));
    EXPECT_TRUE(second.step(step).images.allclose(batch.images.narrow(0, 2, 2)));
    for (int64_t i = 0; i < 4; ++i) {
      const auto n = std::lround(batch.images[i][0][0][0].item<double>()) / 10;
      EXPECT_EQ(batch.targets[i].item<int64_t>(), n % 4);
      EXPECT_NEAR(batch.images[i][0][1][2].item<double>(), 10.0 * static_cast<double>(n) + 5, 1e-3);
      order.push_back(n);
    }
  }
  std::vector<std::vector<int64_t>> epochs;
  for (auto at = order.begin(); at != order.end(); at += 7) {
    epochs.emplace_back(at, at + 7);
    EXPECT_THAT(epochs.back(), ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6));
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(ImageLoader, HoldsOutAShareThatIsNeverTrainedOn) {
  const TemporaryFolder folder;
  ImagesConfig config =
      plain(write_images(folder, 10, 2, 3),
            write_npy<uint8_t>(folder, "y.npy", "|u1", "10,", std::vector<uint8_t>(10)));
  config.validation_fraction = 0.3;
  ImageLoader loader(config, kTiny, {.seed = 1, .batch = 7});
  EXPECT_EQ(loader.num_train(), 7);
  EXPECT_EQ(loader.num_validation(), 3);
  const at::Tensor seen = at::cat({loader.step(0).images, loader.validation(0, 3).images});
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < 10; ++i)
    numbers.push_back(std::lround(seen[i][0][0][0].item<double>()) / 10);
  EXPECT_THAT(numbers, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  // Samples at the end of a folder are all of its last classes.
  numbers.erase(numbers.begin(), numbers.begin() + 7);
  EXPECT_THAT(numbers, ::testing::Not(::testing::UnorderedElementsAre(7, 8, 9)));
  config.validation_fraction = 0.05;
  EXPECT_THAT(message_of([&] { ImageLoader(config, kTiny, {}); }), HasSubstr("holds none out"));
}

TEST(ImageLoader, MirrorsHalfOfTheImagesAndNoValidation) {
  const TemporaryFolder folder;
  ImagesConfig config =
      plain(write_images(folder, 1, 2, 3), write_npy<uint8_t>(folder, "y.npy", "|u1", "1,", {0}));
  config.mirror = true;
  config.validation = config.train;
  config.validation_targets = config.targets;
  ImageLoader loader(config, kTiny, {.seed = 5, .batch = 400});
  const at::Tensor corner = loader.step(0).images.select(1, 0).select(1, 0).select(1, 0);
  const auto mirrored = corner.gt(1).sum().item<int64_t>();  // 2 in place of 0
  EXPECT_NEAR(static_cast<double>(mirrored), 200, 60);       // six standard deviations
  EXPECT_NEAR(loader.validation(0, 1).images[0][0][0][0].item<double>(), 0, 1e-3);
}

TEST(ImagePart, CenterHasTheShapeOfTheForm) {
  const ImageForm form{.height = 20, .width = 30};
  const ImagePart wide = center_part(100, 400, form), high = center_part(90, 30, form);
  EXPECT_EQ(std::vector({wide.top, wide.left, wide.height, wide.width}),
            (std::vector<int64_t>{0, 125, 100, 150}));
  EXPECT_EQ(std::vector({high.top, high.left, high.height, high.width}),
            (std::vector<int64_t>{35, 0, 20, 30}));
}

TEST(ImagePart, RandomPartsLieInTheImageAndVary) {
  const ImageForm form{.height = 10, .width = 10};
  double least = 1, most = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const ImagePart part = random_part(50, 80, form, seed);
    EXPECT_TRUE(part.top >= 0 && part.left >= 0 && part.top + part.height <= 50 &&
                part.left + part.width <= 80);
    const double share = static_cast<double>(part.height * part.width) / 4000;
    least = std::min(least, share);
    most = std::max(most, share);
  }
  EXPECT_NEAR(least, 0.08, 0.02);
  EXPECT_GT(most, 0.7);
}

TEST(ImageSet, MasksKeepTheirNumbersAndFollowTheirImage) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "images");
  fs::create_directories(folder.path() / "masks");
  fs::copy(fixtures() / "rgb.jpg", folder.path() / "images" / "a.jpg");
  fs::copy(fixtures() / "palette.png", folder.path() / "masks" / "a.png");
  const ImageForm form{.height = 26, .width = 36, .classes = 11, .masks = true};
  const ImageSet set(folder.path() / "images", folder.path() / "masks", form, "a", "b");
  const ImageSet::Sample sample = set.read(0);
  const at::Tensor mask = read_mask(fixtures() / "palette.png").to(at::kLong);
  EXPECT_TRUE(sample.target.equal(mask));
  // Twice the size repeats each pixel, and a mirror turns both.
  const ImageSet::Sample twice =
      scaled(sample, {.height = 13, .width = 18, .mirrored = true}, form);
  EXPECT_TRUE(twice.target.equal(mask.flip({1}).repeat_interleave(2, 0).repeat_interleave(2, 1)));
  const ImageForm fewer{.classes = 5, .masks = true};
  const ImageSet wrong(folder.path() / "images", folder.path() / "masks", fewer, "a", "b");
  EXPECT_THAT(message_of([&] { wrong.read(0); }), HasSubstr("class 10 is outside 0 to 4"));
}

TEST(ImageSet, MistakesNameTheirKey) {
  const TemporaryFolder folder;
  const fs::path images = write_images(folder, 3, 2, 3);
  const fs::path two = write_npy<uint8_t>(folder, "two.npy", "|u1", "2,", {0, 1});
  fs::create_directories(folder.path() / "empty");
  const auto of = [&](const fs::path& x, const fs::path& y, bool masks = false) {
    ImageForm form = kTiny;
    form.masks = masks;
    return message_of([&] { ImageSet(x, y, form, "images.train", "images.targets"); });
  };
  EXPECT_THAT(of(folder.path() / "none", ""), HasSubstr("images.train = "));
  EXPECT_THAT(of(folder.path() / "none", ""), HasSubstr("does not exist"));
  EXPECT_THAT(of(images, ""), HasSubstr("images.targets = \"\": it is empty"));
  EXPECT_THAT(of(images, two), HasSubstr("the array is [2], but 3 images need (3)"));
  EXPECT_THAT(of(images, two, true), HasSubstr("need (3, height, width)"));
  EXPECT_THAT(of(folder.path() / "empty", ""), HasSubstr("there is no folder in it"));
  EXPECT_THAT(of(folder.path() / "empty", two), HasSubstr("it does nothing"));
  EXPECT_THAT(of(folder.path() / "empty", "", true), HasSubstr("names no masks"));
  EXPECT_THAT(of(two, two), HasSubstr("not (N, height, width, 1)"));
  const fs::path real = write_npy<float>(folder, "f.npy", "<f4", "1, 1, 1", {0});
  EXPECT_THAT(of(real, two), HasSubstr("values of type f4 are not read"));
  const fs::path huge =
      write_npy<uint8_t>(folder, "huge.npy", "|u1", "4, 4611686018427387904, 16", {0, 1});
  EXPECT_THAT(of(huge, two), HasSubstr("ends within its values"));
  const fs::path none = write_npy<uint8_t>(folder, "none.npy", "|u1", "4, 0, 3", {});
  EXPECT_THAT(of(none, two), HasSubstr("the array is empty"));
  const std::string cut = folder.read("x.npy");
  EXPECT_THAT(of(folder.write("cut.npy", cut.substr(0, cut.size() - 3)), two),
              HasSubstr("ends within its values"));
}

}  // namespace
}  // namespace dovetail::data::images_test
