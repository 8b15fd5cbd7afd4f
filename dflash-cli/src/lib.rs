//! `dflash`.
