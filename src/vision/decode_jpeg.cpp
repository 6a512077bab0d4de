// JPEG by libjpeg-turbo, with the library's defaults (exact integer DCT, smooth upsampling).
#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <jpeglib.h>

#include "vision/decoders.h"
#include "vision/orientation.h"

namespace percheron::vision {
namespace {

// A progressive file may bring any number of scans over all pixels; encoders write about ten.
constexpr int most_scans = 128;
constexpr int application_1 = JPEG_APP0 + 1;

// The library's state and its callbacks'.  Nothing in here has to be unwound when an error jumps
// out of the library.
struct Decompressor {
    jpeg_decompress_struct jpeg = {};
    jpeg_error_mgr errors = {};
    jpeg_source_mgr source = {};
    jpeg_progress_mgr progress = {};
    std::jmp_buf escape = {};
    std::array<char, JMSG_LENGTH_MAX> fault = {};

    explicit Decompressor(FileBytes bytes);
    ~Decompressor() { jpeg_destroy_decompress(&jpeg); }
    Decompressor(const Decompressor&) = delete;
    Decompressor& operator=(const Decompressor&) = delete;

    [[noreturn]] void fail(const char* message) {
        std::snprintf(fault.data(), fault.size(), "%s", message);
        std::longjmp(escape, 1);
    }
};

Decompressor& owner(j_common_ptr jpeg) {
    return *static_cast<Decompressor*>(jpeg->client_data);
}
Decompressor& owner(j_decompress_ptr jpeg) {
    return *static_cast<Decompressor*>(jpeg->client_data);
}

void on_error(j_common_ptr jpeg) {
    std::array<char, JMSG_LENGTH_MAX> message = {};
    jpeg->err->format_message(jpeg, message.data());
    owner(jpeg).fail(message.data());
}

boolean on_end_of_bytes(j_decompress_ptr jpeg) {
    owner(jpeg).fail("it ends early");
}

void on_skip(j_decompress_ptr jpeg, long count) {
    if (count <= 0) return;
    jpeg_source_mgr& source = *jpeg->src;
    if (static_cast<unsigned long>(count) > source.bytes_in_buffer) {
        owner(jpeg).fail("it ends early");
    }
    source.next_input_byte += count;
    source.bytes_in_buffer -= static_cast<std::size_t>(count);
}

void on_progress(j_common_ptr jpeg) {
    if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number > most_scans) {
        owner(jpeg).fail("it has too many scans");
    }
}

Decompressor::Decompressor(FileBytes bytes) {
    jpeg.err = jpeg_std_error(&errors);
    jpeg.client_data = this;
    errors.error_exit = on_error;
    errors.output_message = [](j_common_ptr) {};
    source.next_input_byte = bytes.data();
    source.bytes_in_buffer = bytes.size();
    source.init_source = [](j_decompress_ptr) {};
    source.fill_input_buffer = on_end_of_bytes;
    source.skip_input_data = on_skip;
    source.resync_to_restart = jpeg_resync_to_restart;
    source.term_source = [](j_decompress_ptr) {};
    progress.progress_monitor = on_progress;
}

bool open_guarded(Decompressor& decompressor) {
    if (setjmp(decompressor.escape) != 0) return false;
    jpeg_create_decompress(&decompressor.jpeg);
    decompressor.jpeg.src = &decompressor.source;
    decompressor.jpeg.progress = &decompressor.progress;
    jpeg_save_markers(&decompressor.jpeg, application_1, 0xffff);
    jpeg_read_header(&decompressor.jpeg, TRUE);
    return true;
}

// Rows in RGB, or in inverted CMYK through `inks`, a row of 4 x width.
void read_rows(Decompressor& decompressor, RgbImage& image, std::uint8_t* inks) {
    jpeg_decompress_struct& jpeg = decompressor.jpeg;
    jpeg.out_color_space = inks != nullptr ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&jpeg);
    if (jpeg.output_width != image.width || jpeg.output_height != image.height) {
        decompressor.fail("its header contradicts itself");
    }
    while (jpeg.output_scanline < jpeg.output_height) {
        std::uint8_t* const out = image.row(jpeg.output_scanline);
        JSAMPROW row = inks != nullptr ? inks : out;
        if (jpeg_read_scanlines(&jpeg, &row, 1) != 1) decompressor.fail("it ends early");
        if (inks == nullptr) continue;
        for (std::size_t x = 0; x < image.width; ++x) {
            // Stored inverted: a sample is 255 - ink, so black's sample is k itself.
            const int k = inks[4 * x + 3];
            for (std::size_t c = 0; c < 3; ++c) {
                const int product = (255 - inks[4 * x + c]) * k + 128;
                const int share = ((product >> 8) + product) >> 8;  // product / 255, rounded
                out[3 * x + c] = static_cast<std::uint8_t>(std::clamp(k - share, 0, 255));
            }
        }
    }
}

bool decode_guarded(Decompressor& decompressor, RgbImage& image, std::uint8_t* inks) {
    if (setjmp(decompressor.escape) != 0) return false;
    read_rows(decompressor, image, inks);
    return true;
}

Error corrupt(const Decompressor& decompressor) {
    return {ErrorCode::corrupt, "the JPEG image cannot be read (" +
                                    std::string(decompressor.fault.data()) +
                                    "); send the whole file, baseline or progressive with 8 bits"};
}

int orientation_of(const jpeg_decompress_struct& jpeg) {
    constexpr std::string_view exif_name("Exif\0\0", 6);
    constexpr std::string_view xmp_name("http://ns.adobe.com/xap/1.0/\0", 29);
    std::optional<int> exif;
    std::optional<int> xmp;
    for (const jpeg_marker_struct* marker = jpeg.marker_list; marker != nullptr;
         marker = marker->next) {
        const FileBytes data(marker->data, marker->data_length);
        const std::string_view text(reinterpret_cast<const char*>(marker->data),
                                    marker->data_length);
        if (text.starts_with(exif_name) && !exif) exif = exif_orientation(data);
        if (text.starts_with(xmp_name)) xmp = xmp_orientation(data.subspan(xmp_name.size()));
    }
    return effective_orientation(exif, xmp);
}

}  // namespace

Result<ImageHeader> read_jpeg_header(FileBytes bytes) {
    Decompressor decompressor(bytes);
    if (!open_guarded(decompressor)) return corrupt(decompressor);
    ImageHeader header;
    header.format = ImageFormat::jpeg;
    header.width = decompressor.jpeg.image_width;
    header.height = decompressor.jpeg.image_height;
    header.orientation = orientation_of(decompressor.jpeg);
    return header;
}

Status decode_jpeg(FileBytes bytes, RgbImage& image) {
    Decompressor decompressor(bytes);
    if (!open_guarded(decompressor)) return corrupt(decompressor);
    const int components = decompressor.jpeg.num_components;
    if (components != 1 && components != 3 && components != 4) {
        return Error(ErrorCode::unsupported, "the JPEG image has " + std::to_string(components) +
                                                 " colour components; send gray, RGB or CMYK");
    }
    std::vector<std::uint8_t> inks(components == 4 ? 4 * image.width : 0);
    if (!decode_guarded(decompressor, image, components == 4 ? inks.data() : nullptr)) {
        return corrupt(decompressor);
    }
    return {};
}

}  // namespace percheron::vision
