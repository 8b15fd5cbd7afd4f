//! `dflash inspect`: what a model is made of, what it needs and what runs it.

use crate::args::InspectArgs;
use crate::failure::Failure;

/// Runs the command. Reads headers and configurations, no weights.
pub(crate) fn run(args: &InspectArgs) -> Result<(), Failure> {
    let _source = dflash::resolve(&args.reference)?;
    Ok(())
}
