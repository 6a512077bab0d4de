#include "vision/prompt_image.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include <openssl/evp.h>

namespace percheron::vision {
namespace {

class Sha256 {
  public:
    Sha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_, EVP_sha256(), nullptr); }
    ~Sha256() { EVP_MD_CTX_free(context_); }
    Sha256(const Sha256&) = delete;
    Sha256& operator=(const Sha256&) = delete;

    void add(const void* bytes, std::size_t count) { EVP_DigestUpdate(context_, bytes, count); }
    std::array<std::uint8_t, 32> end() {
        std::array<std::uint8_t, 32> hash{};
        EVP_DigestFinal_ex(context_, hash.data(), nullptr);
        return hash;
    }

  private:
    EVP_MD_CTX* context_;
};

std::array<std::uint8_t, 32> hash_of(const ImageCanvas& canvas) {
    constexpr std::string_view domain = "percheron image canvas 1";
    Sha256 hash;
    hash.add(domain.data(), domain.size());
    hash.add(&canvas.height, sizeof canvas.height);
    hash.add(&canvas.width, sizeof canvas.width);
    hash.add(canvas.mean.data(), sizeof canvas.mean);
    hash.add(canvas.deviation.data(), sizeof canvas.deviation);
    hash.add(canvas.pixels.data(), canvas.pixels.size());
    return hash.end();
}

}  // namespace

PromptImage prompt_image(const RgbImage& picture, const Canvas& canvas,
                         const PictureFormat& format) {
    auto laid = std::make_shared<ImageCanvas>();
    laid->height = static_cast<std::uint32_t>(canvas.height);
    laid->width = static_cast<std::uint32_t>(canvas.width);
    laid->pixels = lay_on_canvas(picture, canvas).pixels;
    laid->mean = format.scale.mean;
    laid->deviation = format.scale.deviation;
    PromptImage image;
    image.count = static_cast<std::uint32_t>(canvas.tokens);
    image.grid_height = static_cast<std::uint32_t>(canvas.height / format.canvas.patch);
    image.grid_width = static_cast<std::uint32_t>(canvas.width / format.canvas.patch);
    image.content_hash = hash_of(*laid);
    image.canvas = std::move(laid);
    return image;
}

}  // namespace percheron::vision
