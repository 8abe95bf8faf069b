void cpu_poi_copy(void **buffers, const long *sizes) {
  float *const b0 = buffers[0];
  float *const b1 = buffers[1];
  const long x1_blocks = (35L + 4095L) / 4096L;
  const long total = 27L * x1_blocks;
  for (long o = 0; o < total; o++) {
    const long x1_from = o % x1_blocks * 4096L;
    const long x1_to = minl(x1_from + 4096L, 35L);
    const long x1_rest = o / x1_blocks;
    const long x2 = x1_rest % 3L;
    const long q1 = x1_rest / 3L;
    const long x0 = q1;
    vf32 t4 = splat_f32(0x1.8000000000000p+0f);
    {
      const long stop = x1_to;
      long x1 = x1_from;
      for (; x1 + 8L <= stop; x1 += 8L) {
        vmask t1 = and_mask(and_mask(lt_i32(add_i32(splat_i32((3L * x1 + x2 + -3L)), mul_i32(iota_i32(0), splat_i32(3))), splat_i32(100L)), splat_mask((0L <= (x0 + -1L)))), le_i32(add_i32(splat_i32((-1L * x1 + 1L)), mul_i32(iota_i32(0), splat_i32(-1))), splat_i32(0L)));
        float t2[8];
        for (int l = 0; l < 8; l++) t2[l] = l < 8 && (((3L * (x1 + l) + x2 + -3L) < 100L) * (0L <= (x0 + -1L)) * ((-1L * (x1 + l) + 1L) <= 0L)) ? b0[(100L * x0 + 3L * (x1 + l) + x2 + -103L)] : 0;
        vf32 t3 = ld_f32(t2, 8);
        vf32 t5 = sel_f32(t1, t3, t4);
        float t6[8];
        st_f32(t6, t5, 8);
        for (int l = 0; l < 8; l++) b1[(105L * x0 + 3L * (x1 + l) + x2)] = t6[l];
      }
      if (x1 < stop) { const int n = (int)(stop - x1);
        vmask t7 = and_mask(and_mask(lt_i32(add_i32(splat_i32((3L * x1 + x2 + -3L)), mul_i32(iota_i32(0), splat_i32(3))), splat_i32(100L)), splat_mask((0L <= (x0 + -1L)))), le_i32(add_i32(splat_i32((-1L * x1 + 1L)), mul_i32(iota_i32(0), splat_i32(-1))), splat_i32(0L)));
        float t8[8];
        for (int l = 0; l < 8; l++) t8[l] = l < n && (((3L * (x1 + l) + x2 + -3L) < 100L) * (0L <= (x0 + -1L)) * ((-1L * (x1 + l) + 1L) <= 0L)) ? b0[(100L * x0 + 3L * (x1 + l) + x2 + -103L)] : 0;
        vf32 t9 = ld_f32(t8, 8);
        vf32 t10 = sel_f32(t7, t9, t4);
        float t11[8];
        st_f32(t11, t10, 8);
        for (int l = 0; l < n; l++) b1[(105L * x0 + 3L * (x1 + l) + x2)] = t11[l];
      }
    }
  }
}
