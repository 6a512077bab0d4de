// S9 of docs/SCHEDULER.md: what running streams keep of their rate beside prompts.
#include "engine/decode_share.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace percheron::engine {
namespace {

// A machine on which a prefill step leaves the next decode steps slower.
struct Machine {
    double prefill = 0.08;     // seconds
    double decode = 0.003;     // of an undisturbed step
    double slower_first = 1;   // the first step behind a prefill step takes so many times as long,
    double slower_always = 1;  // and each as long as prompts are there
    double fading = 1;         // what is left of the former from one step to the next
    double noise = 0;          // of every step's length
};

struct Kept {
    double rate = 0;  // of the streams, of what they have by themselves
    double time = 0;  // of the prompts
};

Kept play(const Machine& machine, double share, std::uint32_t rows, std::mt19937& random) {
    DecodeShare decode_share(share, 16);
    const auto noisy = [&](double seconds) {
        return seconds *
               std::uniform_real_distribution<>(1 - machine.noise, 1 + machine.noise)(random);
    };
    for (int i = 0; i < 300; ++i)
        decode_share.add_decode(rows, noisy(machine.decode));
    double all = 0;
    double prefill = 0;
    double steps = 0;
    for (int slice = 0; slice < 1000; ++slice) {
        double seconds = noisy(machine.prefill);
        decode_share.add_prefill(seconds);
        all += seconds;
        prefill += seconds;
        double slower = machine.slower_first - 1;
        while (decode_share.owed() > 0) {
            seconds = noisy(machine.decode * machine.slower_always * (1 + slower));
            slower *= machine.fading;
            decode_share.add_decode(rows, seconds);
            all += seconds;
            ++steps;
        }
    }
    return {steps * machine.decode / all, prefill / all};
}

TEST(DecodeShare, StreamsKeepTheirShareThoughPromptsMakeTheirStepsSlower) {
    std::mt19937 random(21);
    const auto real = [&](double low, double high) {
        return std::uniform_real_distribution<>(low, high)(random);
    };
    for (int round = 0; round < 60; ++round) {
        Machine machine;
        machine.prefill = real(0.02, 0.2);
        machine.decode = machine.prefill / real(20, 60);
        machine.slower_first = real(1, 1.7);
        machine.slower_always = real(1, 1.02);
        machine.fading = real(0.3, 0.8);
        machine.noise = real(0, 0.05);
        const double share = real(0.3, 0.6);
        const Kept kept = play(machine, share, 1 + random() % 16, random);
        EXPECT_GE(kept.rate, share * 0.97) << round;
        // Nor much more: the step that pays the rest, and what noise adds.
        EXPECT_LE(kept.rate, share + machine.decode / machine.prefill + 2 * machine.noise) << round;
    }
}

TEST(DecodeShare, PromptsKeepTimeHoweverSlowStepsAre) {
    std::mt19937 random(22);
    for (const double share : {0.0, 0.25, 0.5, 0.8}) {
        for (const double slower : {1.0, 1.5, 3.0, 20.0}) {
            Machine machine;
            machine.decode = 0.0005;
            machine.slower_always = slower;
            const Kept kept = play(machine, share, 4, random);
            const double step = machine.decode * slower / machine.prefill;
            EXPECT_GE(kept.time, (1 - share) / (1 + share) - step) << share << " " << slower;
        }
    }
}

TEST(DecodeShare, LongerTextsAreNotTakenForDisturbance) {
    DecodeShare decode_share(0.5, 16);
    double seconds = 0.001;
    for (int i = 0; i < 20'000; ++i) {
        seconds *= 1.0001;
        decode_share.add_decode(2, seconds);
    }
    decode_share.add_prefill(1);
    const double before = decode_share.owed();
    decode_share.add_decode(2, seconds);
    EXPECT_NEAR(before - decode_share.owed(), seconds, 0.05 * seconds);
}

TEST(DecodeShare, NobodyDecodingOwesNothing) {
    DecodeShare decode_share(0.5, 4);
    decode_share.add_prefill(2);
    EXPECT_DOUBLE_EQ(decode_share.owed(), 2);
    decode_share.forgive();
    EXPECT_EQ(decode_share.owed(), 0);
}

}  // namespace
}  // namespace percheron::engine
