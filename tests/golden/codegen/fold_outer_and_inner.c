void cpu_red_fused_sum(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  const long total = 20L;
  for (long o = 0; o < total; o++) {
    const long x1 = o;
    vf32 a0 = splat_f32(0);
    vf32 ea0 = splat_f32(0);
    vf32 p0_0 = splat_f32(0);
    vf32 p0_1 = splat_f32(0);
    vf32 p0_2 = splat_f32(0);
    vf32 p0_3 = splat_f32(0);
    for (long x0 = 0; x0 < 6L; x0 += 1)
      {
        for (long k = 0; k < 35L; k += 2048L) {
          const long stop = minl(k + 2048L, 35L);
          long x2 = k;
          for (; x2 + 32L <= stop; x2 += 32L) {
            vf32 t1 = ld_f32(b0 + (700L * x0 + 35L * x1 + x2), 8);
            p0_0 = add_f32(p0_0, t1);
            vf32 t2 = ld_f32(b0 + (700L * x0 + 35L * x1 + (x2 + 8L)), 8);
            p0_1 = add_f32(p0_1, t2);
            vf32 t3 = ld_f32(b0 + (700L * x0 + 35L * x1 + (x2 + 16L)), 8);
            p0_2 = add_f32(p0_2, t3);
            vf32 t4 = ld_f32(b0 + (700L * x0 + 35L * x1 + (x2 + 24L)), 8);
            p0_3 = add_f32(p0_3, t4);
          }
          for (; x2 + 8L <= stop; x2 += 8L) {
            vf32 t5 = ld_f32(b0 + (700L * x0 + 35L * x1 + x2), 8);
            p0_0 = add_f32(p0_0, t5);
          }
          if (x2 < stop) { const int n = (int)(stop - x2);
            vf32 t6 = ld_f32(b0 + (700L * x0 + 35L * x1 + x2), n);
            p0_0 = add_f32(p0_0, sel_f32(lt_i32(iota_i32(0), splat_i32(n)), t6, splat_f32(0)));
          }
          { vf32 y = sub_f32(add_f32(add_f32(p0_0, p0_1), add_f32(p0_2, p0_3)), ea0); vf32 z = add_f32(a0, y); ea0 = sub_f32(sub_f32(z, a0), y); a0 = z; } p0_0 = splat_f32(0); p0_1 = splat_f32(0); p0_2 = splat_f32(0); p0_3 = splat_f32(0);
        }
      }
    vf32 r0 = splat_f32(hsum_f32(a0));
    st_f32(b1 + x1, r0, 1);
  }
}
