// Four floats on any processor that Highway knows: SSE4.2 on x86-64 (this file's flags), NEON on
// aarch64.
#pragma once

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

namespace percheron::ops::cpu {
namespace {

struct Highway {
    using Tag = hwy::HWY_NAMESPACE::CappedTag<float, 4>;
    using IntTag = hwy::HWY_NAMESPACE::RebindToSigned<Tag>;
    using WordTag = hwy::HWY_NAMESPACE::RebindToUnsigned<Tag>;
    using HalfWordTag = hwy::HWY_NAMESPACE::Rebind<std::uint16_t, Tag>;
    using ByteTag = hwy::HWY_NAMESPACE::Rebind<std::uint8_t, Tag>;
    using F = hwy::HWY_NAMESPACE::Vec<Tag>;
    using Words = hwy::HWY_NAMESPACE::Vec<WordTag>;
    using Scale = F;
    static constexpr std::size_t lanes = 4;
    static constexpr int registers = HWY_ARCH_ARM_A64 ? 32 : 16;

    static_assert(hwy::HWY_NAMESPACE::MaxLanes(Tag()) == lanes);

    static F zero() { return hwy::HWY_NAMESPACE::Zero(Tag()); }
    static F set1(float value) { return hwy::HWY_NAMESPACE::Set(Tag(), value); }
    static F load(const float* from) { return hwy::HWY_NAMESPACE::LoadU(Tag(), from); }
    static void store(float* to, F value) { hwy::HWY_NAMESPACE::StoreU(value, Tag(), to); }
    static F add(F a, F b) { return hwy::HWY_NAMESPACE::Add(a, b); }
    static F sub(F a, F b) { return hwy::HWY_NAMESPACE::Sub(a, b); }
    static F mul(F a, F b) { return hwy::HWY_NAMESPACE::Mul(a, b); }
    static F div(F a, F b) { return hwy::HWY_NAMESPACE::Div(a, b); }
    static F fma(F a, F b, F c) { return hwy::HWY_NAMESPACE::MulAdd(a, b, c); }
    static F min(F a, F b) { return hwy::HWY_NAMESPACE::Min(a, b); }
    static F max(F a, F b) { return hwy::HWY_NAMESPACE::Max(a, b); }
    static F nearest(F a) { return hwy::HWY_NAMESPACE::Round(a); }
    static F times_power_of_two(F a, F n) {
        namespace hn = hwy::HWY_NAMESPACE;
        const auto biased = hn::Add(hn::NearestInt(n), hn::Set(IntTag(), 127));
        return hn::Mul(a, hn::BitCast(Tag(), hn::ShiftLeft<23>(biased)));
    }

    static float sum(F a) {
        float lane[4];
        store(lane, a);
        return (lane[0] + lane[2]) + (lane[1] + lane[3]);
    }
    // to[0..4) = the sums of four vectors, each in the order of sum().
    static void store_sums4(float* to, const F* v) {
        for (int i = 0; i < 4; ++i)
            to[i] = sum(v[i]);
    }
    static float largest(F a) {
        return hwy::HWY_NAMESPACE::GetLane(hwy::HWY_NAMESPACE::MaxOfLanes(Tag(), a));
    }

    static F load_bf16(const std::uint16_t* from) {
        namespace hn = hwy::HWY_NAMESPACE;
        const auto wide = hn::PromoteTo(WordTag(), hn::LoadU(HalfWordTag(), from));
        return hn::BitCast(Tag(), hn::ShiftLeft<16>(wide));
    }
    static F round_bf16(F a) {
        namespace hn = hwy::HWY_NAMESPACE;
        const WordTag words;
        const auto bits = hn::BitCast(words, a);
        const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1u));
        const auto up = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fffu)));
        const auto quiet = hn::Or(bits, hn::Set(words, 0x400000u));
        const auto kept =
            hn::IfThenElse(hn::Eq(a, a), hn::BitCast(Tag(), up), hn::BitCast(Tag(), quiet));
        return hn::And(kept, hn::BitCast(Tag(), hn::Set(words, 0xffff0000u)));
    }
    // Times 2^-8 as in vector_avx512.h.  The code is moved into a float's fields, where its value
    // is 2^-120 times too small, then scaled up; a subnormal code would be a subnormal float there
    // and is slow on some processors but exact.
    static F load_e4m3(const std::uint8_t* from) {
        namespace hn = hwy::HWY_NAMESPACE;
        const WordTag words;
        const auto wide = hn::PromoteTo(words, hn::LoadU(ByteTag(), from));
        const auto magnitude = hn::ShiftLeft<20>(hn::And(wide, hn::Set(words, 0x7fu)));
        const auto sign = hn::ShiftLeft<24>(hn::And(wide, hn::Set(words, 0x80u)));
        const F up = hn::Set(Tag(), 0x1p112f);
        return hn::Mul(hn::BitCast(Tag(), hn::Or(sign, magnitude)), up);
    }
    static void load_e4m3_pair(const std::uint8_t* from, F out[2]) {
        out[0] = load_e4m3(from);
        out[1] = load_e4m3(from + lanes);
    }

    static Words load_words(const std::uint32_t* from) {
        return hwy::HWY_NAMESPACE::LoadU(WordTag(), from);
    }
    static Words next_nibble(Words words) { return hwy::HWY_NAMESPACE::ShiftRight<4>(words); }
    static Scale nibble_scale(float scale) { return set1(scale); }
    static F nibble(Words words, Scale scale) {
        namespace hn = hwy::HWY_NAMESPACE;
        const auto value = hn::And(words, hn::Set(WordTag(), 15u));
        const auto centred = hn::Sub(hn::BitCast(IntTag(), value), hn::Set(IntTag(), 8));
        return hn::Mul(hn::ConvertTo(Tag(), centred), scale);
    }

    static F lower_bf16(F pairs) {
        return as_floats(hwy::HWY_NAMESPACE::ShiftLeft<16>(as_words(pairs)));
    }
    static F upper_bf16(F pairs) {
        namespace hn = hwy::HWY_NAMESPACE;
        return as_floats(hn::And(as_words(pairs), hn::Set(WordTag(), 0xffff0000u)));
    }

    static F as_floats(Words words) { return hwy::HWY_NAMESPACE::BitCast(Tag(), words); }
    static Words as_words(F floats) { return hwy::HWY_NAMESPACE::BitCast(WordTag(), floats); }

    // Lane j of m[i] becomes lane i of m[j].
    static void transpose(F (&m)[4]) {
        float rows[16];
        for (std::size_t i = 0; i < 4; ++i)
            store(rows + 4 * i, m[i]);
        load_interleaved4(rows, m);
    }

    static void load_interleaved4(const float* from, F out[4]) {
        hwy::HWY_NAMESPACE::LoadInterleaved4(Tag(), from, out[0], out[1], out[2], out[3]);
    }
};

}  // namespace
}  // namespace percheron::ops::cpu
