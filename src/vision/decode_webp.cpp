// WebP by libwebp; of an animation the first picture on its canvas, as its decoder composes it.
#include <algorithm>
#include <memory>

#include <webp/decode.h>
#include <webp/demux.h>

#include "vision/decoders.h"
#include "vision/orientation.h"

namespace percheron::vision {
namespace {

Error corrupt() {
    return {ErrorCode::corrupt, "the WebP image is damaged; send the whole file"};
}

struct DeleteDemuxer {
    void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

struct DeleteAnimation {
    void operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }
};

// The bytes of the first chunk of that name; they lie in the file.
FileBytes chunk(const WebPDemuxer* demuxer, const char* name) {
    WebPChunkIterator iterator = {};
    FileBytes bytes;
    if (WebPDemuxGetChunk(demuxer, name, 1, &iterator) != 0) {
        bytes = {iterator.chunk.bytes, iterator.chunk.size};
    }
    WebPDemuxReleaseChunkIterator(&iterator);
    return bytes;
}

Status decode_first_frame(FileBytes bytes, RgbImage& image) {
    WebPAnimDecoderOptions options;
    if (WebPAnimDecoderOptionsInit(&options) == 0) return corrupt();
    options.color_mode = MODE_RGBA;
    const WebPData data{bytes.data(), bytes.size()};
    const std::unique_ptr<WebPAnimDecoder, DeleteAnimation> decoder(
        WebPAnimDecoderNew(&data, &options));
    WebPAnimInfo info = {};
    if (!decoder || WebPAnimDecoderGetInfo(decoder.get(), &info) == 0 ||
        info.canvas_width != image.width || info.canvas_height != image.height) {
        return corrupt();
    }
    std::uint8_t* canvas = nullptr;
    int timestamp = 0;
    if (WebPAnimDecoderGetNext(decoder.get(), &canvas, &timestamp) == 0) return corrupt();
    for (std::size_t i = 0; i < image.width * image.height; ++i) {
        std::copy_n(canvas + 4 * i, 3, image.pixels.data() + 3 * i);
    }
    return {};
}

}  // namespace

Result<ImageHeader> read_webp_header(FileBytes bytes) {
    WebPBitstreamFeatures features;
    if (WebPGetFeatures(bytes.data(), bytes.size(), &features) != VP8_STATUS_OK) return corrupt();
    const WebPData data{bytes.data(), bytes.size()};
    const std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer(WebPDemux(&data));
    if (!demuxer) return corrupt();
    ImageHeader header;
    header.format = ImageFormat::webp;
    header.width = static_cast<std::size_t>(features.width);
    header.height = static_cast<std::size_t>(features.height);
    header.orientation = effective_orientation(exif_orientation(chunk(demuxer.get(), "EXIF")),
                                               xmp_orientation(chunk(demuxer.get(), "XMP ")));
    return header;
}

Status decode_webp(FileBytes bytes, RgbImage& image) {
    WebPBitstreamFeatures features;
    if (WebPGetFeatures(bytes.data(), bytes.size(), &features) != VP8_STATUS_OK) return corrupt();
    if (features.has_animation != 0) return decode_first_frame(bytes, image);
    if (WebPDecodeRGBInto(bytes.data(), bytes.size(), image.pixels.data(), image.pixels.size(),
                          static_cast<int>(image.width * 3)) == nullptr) {
        return corrupt();
    }
    return {};
}

}  // namespace percheron::vision
