// Weights read past the page cache, against the mapped files.
#include "checkpoint/weight_reads.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "support/temporary_folder.h"
#include "tools/synth.h"

namespace percheron::tools {
namespace {

using checkpoint::Checkpoint;
using checkpoint::WeightReads;
using ops::WeightFormat;
using ops::WeightMatrix;
using tests::TemporaryFolder;

SynthOptions small_model(WeightFormat format) {
    SynthOptions options;
    options.spec.layers = 2;
    options.spec.dense_layers = 1;
    options.spec.vocabulary = 50;
    options.spec.hidden = 384;
    options.spec.intermediate = 640;
    options.spec.experts = 4;
    options.spec.experts_per_token = 2;
    options.spec.expert_intermediate = 256;
    options.spec.attention_heads = options.spec.kda_heads = options.spec.index_heads = 1;
    options.spec.query_rank = options.spec.latent = 128;
    options.spec.query_key_dim = options.spec.value_dim = options.spec.index_dim = 32;
    options.spec.kda_dim = 32;
    options.spec.mtp = 0;
    options.spec.vision = 0;
    options.spec.format = format;
    options.threads = 1;
    return options;
}

struct Named {
    std::string name;
    WeightMatrix matrix;
};

std::vector<Named> matrices_of(Checkpoint& files) {
    const model::ModelConfig& config = files.config();
    std::vector<Named> all;
    const auto add = [&](const std::string& name, std::size_t n, std::size_t k) {
        const std::string stem = "model.language_model." + name;
        all.push_back({stem, files.matrix(stem, n, k).value()});
    };
    add("embed_tokens", config.vocabulary, config.hidden);
    const auto feed_forward = [&](const std::string& at, std::size_t width) {
        add(at + "gate_proj", width, config.hidden);
        add(at + "up_proj", width, config.hidden);
        add(at + "down_proj", config.hidden, width);
    };
    feed_forward("layers.0.mlp.", config.dense_intermediate);
    for (std::size_t expert = 0; expert < config.experts; ++expert)
        feed_forward("layers.1.mlp.experts." + std::to_string(expert) + ".",
                     config.expert_intermediate);
    return all;
}

struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
};

// A place for every reader, of so many bytes.
class Rooms {
  public:
    Rooms(std::size_t readers, Bytes bytes) : bytes_(bytes) {
        for (std::size_t i = 0; i < readers; ++i)
            rooms_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
    }
    Result<std::byte*> of(std::size_t reader) { return rooms_[reader].get(); }
    bool hold(std::size_t reader, const void* data, Bytes bytes) const {
        const auto* const first = static_cast<const std::byte*>(data);
        return first >= rooms_[reader].get() && first + bytes <= rooms_[reader].get() + bytes_;
    }

  private:
    Bytes bytes_;
    std::vector<std::unique_ptr<std::byte, Free>> rooms_;
};

TEST(WeightReads, EveryPieceArrivesOnceWithItsBytes) {
    std::mt19937 random(71);
    for (const WeightFormat format :
         {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::w4a16, WeightFormat::nvfp4}) {
        for (int repeat = 0; repeat < 4; ++repeat) {
            TemporaryFolder folder;
            SynthOptions options = small_model(format);
            // Scales beside their weights, or in another file.
            options.shards = 1 + random() % 3;
            options.split_pairs = options.shards > 1;
            ASSERT_TRUE(synth(folder.path() / "model", options).ok());
            const auto files = Checkpoint::open(folder.path() / "model").value();
            WeightReads& reads = *files->read_past_the_cache({}).value();
            const std::vector<Named> matrices = matrices_of(*files);

            struct Piece {
                WeightMatrix rows;
                std::atomic<int> arrivals = 0;
                std::atomic<bool> same = false;
            };
            std::vector<std::unique_ptr<Piece>> pieces;
            Bytes room = 0, bytes = 0;
            for (const Named& named : matrices) {
                ASSERT_TRUE(reads.holds(named.matrix)) << named.name;
                const std::size_t step = 128 * (1 + random() % 5);
                for (std::size_t first = 0; first < named.matrix.n; first += step) {
                    pieces.push_back(std::make_unique<Piece>());
                    WeightMatrix& rows = pieces.back()->rows;
                    rows = rows_of(named.matrix, first, std::min(step, named.matrix.n - first));
                    room = std::max(room, reads.room_for(rows));
                    bytes += data_bytes(rows) + scale_bytes(rows);
                }
            }
            const std::size_t readers = 1 + random() % 5;
            Rooms rooms(readers, room);
            reads.start(readers, [&](std::size_t reader) { return rooms.of(reader); });
            const auto arrived = [&rooms](Piece& piece) {
                return [&rooms, &piece](std::size_t reader, const WeightMatrix& rows) -> Status {
                    const WeightMatrix& stored = piece.rows;
                    const Bytes data = data_bytes(stored), scales = scale_bytes(stored);
                    ++piece.arrivals;
                    piece.same =
                        rows.format == stored.format && rows.n == stored.n && rows.k == stored.k &&
                        rooms.hold(reader, rows.data, data) &&
                        std::memcmp(rows.data, stored.data, data) == 0 &&
                        (scales == 0 || (rooms.hold(reader, rows.scales, scales) &&
                                         std::memcmp(rows.scales, stored.scales, scales) == 0));
                    return {};
                };
            };
            for (std::size_t i = 0; i < pieces.size(); ++i) {
                reads.read(pieces[i]->rows, "a matrix", arrived(*pieces[i]));
                // Whoever waits in between has all that was asked for.
                if (random() % 16 != 0) continue;
                ASSERT_TRUE(reads.wait().ok());
                for (std::size_t j = 0; j <= i; ++j)
                    ASSERT_EQ(pieces[j]->arrivals, 1);
            }
            ASSERT_TRUE(reads.wait().ok());
            reads.stop();
            for (const auto& piece : pieces) {
                EXPECT_EQ(piece->arrivals, 1);
                EXPECT_TRUE(piece->same);
            }
            EXPECT_EQ(reads.figures().bytes, bytes);
            reads.drop_from_cache();
        }
    }
}

// Memory of others, and what ends beyond a file, is nothing that the files hold.
TEST(WeightReads, OthersMemoryIsNotHeld) {
    TemporaryFolder folder;
    ASSERT_TRUE(synth(folder.path() / "model", small_model(WeightFormat::w4a16)).ok());
    const auto files = Checkpoint::open(folder.path() / "model").value();
    WeightReads& reads = *files->read_past_the_cache({}).value();
    const WeightMatrix stored = matrices_of(*files)[1].matrix;
    EXPECT_TRUE(reads.holds(stored));
    std::vector<std::byte> copy(stored_bytes(stored));
    WeightMatrix elsewhere = stored;
    elsewhere.data = copy.data();
    EXPECT_FALSE(reads.holds(elsewhere));
    elsewhere = stored;
    elsewhere.scales = copy.data();
    EXPECT_FALSE(reads.holds(elsewhere));
    elsewhere = stored;
    elsewhere.n = files->shards().files().front().mapping().bytes().size() / stored.k * 2;
    EXPECT_FALSE(reads.holds(elsewhere));
}

TEST(WeightReads, FaultsAreNamedAndEndTheReading) {
    struct Fault {
        WeightFormat format;
        const char* what;
        ErrorCode code;
        const char* said;
    };
    for (const Fault& fault :
         {Fault{WeightFormat::fp8_block, "shorter", ErrorCode::corrupt, "shorter"},
          Fault{WeightFormat::fp8_block, "codes", ErrorCode::corrupt, "NaN"},
          Fault{WeightFormat::fp8_block, "scales", ErrorCode::corrupt, "NaN"},
          Fault{WeightFormat::w4a16, "scales", ErrorCode::corrupt, "NaN"},
          Fault{WeightFormat::nvfp4, "scales", ErrorCode::corrupt, "NaN"},
          Fault{WeightFormat::bf16, "arrival", ErrorCode::out_of_memory, "no room there"},
          Fault{WeightFormat::bf16, "room", ErrorCode::out_of_memory, "no room here"}}) {
        const std::string what = fault.what;
        TemporaryFolder folder;
        ASSERT_TRUE(synth(folder.path() / "model", small_model(fault.format)).ok());
        const std::filesystem::path file = folder.path() / "model" / "model.safetensors";
        const auto* const said = fault.said;
        const auto files = Checkpoint::open(folder.path() / "model").value();
        WeightReads& reads = *files->read_past_the_cache({}).value();
        const auto* const base = files->shards().files().front().mapping().bytes().data();
        const std::vector<Named> before = matrices_of(*files);
        const Named& damaged = before[5];  // of a routed expert, which every format quantises
        ASSERT_EQ(damaged.matrix.format, fault.format);
        const auto place = static_cast<const std::byte*>(what == "scales" ? damaged.matrix.scales
                                                                          : damaged.matrix.data) -
                           base;
        if (what == "codes" || what == "scales") {
            std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
            stream.seekp(place + (what == "scales" ? 2 : 78)).write("\xff\x7f", 2);
        }
        // Asking for a matrix does not look at its values; reading it does.
        const std::vector<Named> matrices = matrices_of(*files);
        if (what == "shorter")
            std::filesystem::resize_file(file, static_cast<std::uintmax_t>(place + 100));
        Bytes room = 0;
        for (const Named& named : matrices)
            room = std::max(room, reads.room_for(named.matrix));
        Rooms rooms(3, room);
        reads.start(3, [&](std::size_t reader) -> Result<std::byte*> {
            if (what == "room") return Error(ErrorCode::out_of_memory, "no room here");
            return rooms.of(reader);
        });
        std::mutex mutex;
        std::vector<std::string> arrived;
        const auto read = [&](const Named& named) {
            reads.read(named.matrix, named.name,
                       [&, name = named.name](std::size_t, const WeightMatrix&) -> Status {
                           if (what == "arrival")
                               return Error(ErrorCode::out_of_memory, "no room there");
                           const std::lock_guard lock(mutex);
                           arrived.push_back(name);
                           return {};
                       });
        };
        read(matrices[5]);
        const Status first = reads.wait();
        ASSERT_FALSE(first.ok()) << what;
        EXPECT_EQ(first.error().code(), fault.code) << what;
        EXPECT_NE(first.error().message().find(said), std::string::npos) << first.error().message();
        if (fault.code == ErrorCode::corrupt) {
            EXPECT_NE(first.error().message().find("model.safetensors"), std::string::npos);
        }
        if (std::string(said) == "NaN") {
            EXPECT_NE(first.error().message().find(damaged.name), std::string::npos);
        }
        // Nothing behind it is read, and the first fault stays.
        for (const Named& named : matrices)
            read(named);
        EXPECT_EQ(reads.wait().error().message(), first.error().message());
        EXPECT_TRUE(arrived.empty());
    }
}

// Whoever ends it with pieces still waiting can wait no longer for them, and begin anew.
TEST(WeightReads, EndsWhileMuchIsLeftAndBeginsAnew) {
    TemporaryFolder folder;
    ASSERT_TRUE(synth(folder.path() / "model", small_model(WeightFormat::bf16)).ok());
    const auto files = Checkpoint::open(folder.path() / "model").value();
    WeightReads& reads = *files->read_past_the_cache({}).value();
    const WeightMatrix stored = matrices_of(*files)[1].matrix;
    Rooms rooms(2, reads.room_for(stored));
    for (const int pieces : {1000, 3}) {
        std::atomic<int> arrivals = 0;
        reads.start(2, [&](std::size_t reader) { return rooms.of(reader); });
        for (int i = 0; i < pieces; ++i)
            reads.read(stored, "a matrix", [&](std::size_t, const WeightMatrix&) -> Status {
                ++arrivals;
                return {};
            });
        if (pieces == 3) {
            ASSERT_TRUE(reads.wait().ok());
            EXPECT_EQ(arrivals, 3);
        }
        reads.stop();
        const int taken = arrivals;
        EXPECT_TRUE(reads.wait().ok());
        EXPECT_EQ(arrivals, taken);
    }
}

}  // namespace
}  // namespace percheron::tools
